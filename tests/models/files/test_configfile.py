"""Values of a configuration file are taken as what they must be, or refused by name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.evaluators.hf import load_hf_evaluator
from orderlens.models.files.configfile import ConfigValues, read_json
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.models.loading import load_model

JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60) | st.lists(st.integers())
)


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda v: v.integer("layers"), "layers=2.5 must be an integer of at least 1"),
        (lambda v: v.integer("width", high=8), "width=9 must be an integer of at least 1 and at most 8"),
        (lambda v: v.integer("tied"), "tied=True must be an integer"),
        (lambda v: v.number("eps"), "eps=0 must be a positive number"),
        (lambda v: v.flag("width"), "width=9 must be true or false"),
        (lambda v: v.choice("attention", ["full", "causal"]), "'odd' is not supported (only full, causal)"),
        (lambda v: v.token("mask", 5), "mask=5 is outside the vocabulary of 5"),
        (lambda v: v.token("layers", 5), "layers=2.5 must be a token id"),
        (lambda v: v.integer("absent"), "lacks absent"),
        (lambda v: v.integer("empty"), "lacks empty"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(take, said):
    given_values = {"layers": 2.5, "width": 9, "eps": 0, "tied": True, "attention": "odd", "mask": 5}
    with pytest.raises(ModelLoadError) as caught:
        take(ConfigValues(given_values | {"empty": None}))
    assert str(caught.value).startswith("config.json: ")
    assert said in str(caught.value)


@given(JSON)
def test_whatever_stands_there_is_a_good_value_or_one_short_line(value):
    """Every reader gives a value of its kind or one line; nothing else can come out."""
    values = ConfigValues({"key": value})
    for take, fits in (
        (values.integer, lambda found: type(found) is int and found >= 1),
        (values.number, lambda found: type(found) is float and 0 < found < math.inf),
        (values.flag, lambda found: type(found) is bool),
        (lambda key: values.token(key, 7), lambda found: found in range(7)),
    ):
        line, found = "", None
        try:
            found = take("key")
        except ModelLoadError as error:
            line = str(error)
        assert 0 < len(line) < 160 or fits(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "must hold a JSON object, not a list"),
        ("{", "cannot be read as JSON"),
        (None, "is missing; the folder is not a complete checkpoint"),
    ],
)
def test_a_file_that_is_no_object_is_refused(tmp_path, text, said):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelLoadError, match=said):
        read_json(path)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: HiddenMarkovModel(n_states=0), "states=0 and block=32 must be at least 1"),
        (lambda: HiddenMarkovModel(attention="causal"), "attention=causal must be one of"),
        (lambda: HiddenMarkovModel(n_characters=1), "characters=1 must be between 2"),
        (lambda: load_model("tiny:3"), "model 'tiny:3': tiny takes no options"),
        (lambda: load_model("smol:3"), "model 'smol:3': smol takes no options"),
        (lambda: load_hf_evaluator(""), "needs a name; write hf:ORG/NAME"),
    ],
)
def test_a_model_specification_that_means_nothing_is_refused(call, said):
    with pytest.raises(UserInputError, match=said):
        call()
