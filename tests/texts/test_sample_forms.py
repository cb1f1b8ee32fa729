"""Samples in the forms users have them, and one clear line for what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.common.temperature import as_temperatures
from orderlens.errors import OrderLensError, UserInputError
from orderlens.texts.samples import as_samples


def test_a_string_is_one_prompt() -> None:
    outputs = ol.generate("hmm", "hello", "max-prob", max_new_tokens=4).outputs().to_pandas()
    assert outputs.prompt_text.tolist() == ["hello"]


def test_one_sample_and_rows_are_samples() -> None:
    sample = ol.Sample("a", "x", "y")
    assert as_samples(sample) == [sample]
    assert as_samples({"prompt": "x", "target": "y", "id": 7}) == [ol.Sample("7", "x", "y")]
    assert as_samples(row for row in [{"prompt": "x"}, "z"]) == [ol.Sample("0", "x"), ol.Sample("1", "z")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Path("a.jsonl"), "'a.jsonl' is a path; read the file with orderlens.load_samples"),
        (3, "expected a Sample, a text, a dict .* not int"),
        (None, "not NoneType"),
        (b"text", "not bytes"),
        ([1, 2], r"item 0 is int.*token ids go into Sample\(id, prompt"),
        ([["a"]], "item 0 is list"),
        ([{"text": "a"}], "row 0 .* it has 'text'; split texts with orderlens.load_samples"),
        ([{"id": "a"}], "it has no 'prompt'"),
        (pd.DataFrame({"prompt": ["a"]}), "DataFrame is not a list of samples; give its rows"),
        (pa.table({"prompt": ["a"]}), "Table is not a list of samples"),
    ],
)
def test_other_things_get_one_clear_line(given: Any, message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        as_samples(given)


@pytest.mark.parametrize("ids", [[1.0, 2.7], np.array([0.5]), [True, False], [[1]], ["a"], [None]])
def test_token_ids_are_never_rounded(ids: Any) -> None:
    with pytest.raises(UserInputError, match="sample 'a': prompt must be text or a list of whole token ids"):
        ol.generate("hmm", ol.Sample("a", ids), "max-prob", max_new_tokens=2)


def test_arrays_of_ids_and_no_ids_are_fine() -> None:
    run = ol.generate(
        "hmm", [ol.Sample("a", np.array([1, 2])), ol.Sample("b", [])], "max-prob", max_new_tokens=2
    )
    assert run.outputs().to_arrow()["prompt_ids"].to_pylist() == [[1, 2], []]


def test_temperatures() -> None:
    assert as_temperatures(1) == [1.0]
    assert as_temperatures(np.float32(0.5)) == [0.5]
    assert as_temperatures(np.array([0.0, 1.0])) == [0.0, 1.0]
    assert as_temperatures("0.5, 0") == as_temperatures(["0.5", 0]) == [0.5, 0.0]
    for wrong in ("warm", ["0.5:"], None, True):
        with pytest.raises(UserInputError, match=r"temperature .* must be a number, START:END"):
            as_temperatures(wrong)  # type: ignore[arg-type]


SAMPLE = ol.Sample("a", "hello", "world")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ol.score(None, SAMPLE, "forced-ar"), "None is not a model, a model name or a model folder"),
        (lambda: ol.load_model(Path("no/such")), "model folder 'no/such' does not exist"),
        (lambda: ol.score("hmm", SAMPLE, None), "None is not an order"),
        (lambda: ol.score("hmm", SAMPLE, [1]), "1 is not an order"),
        (lambda: ol.score("hmm", SAMPLE, "forced-ar", block_size="8"), "block_size='8' must be a whole"),
        (lambda: ol.score("hmm", SAMPLE, "forced-ar", batch_size=2.5), r"batch_size=2\.5 must be a whole"),
        (lambda: ol.score("hmm", SAMPLE, "forced-ar", circulation=True), "circulation=True must be a whole"),
        (lambda: ol.score("hmm", SAMPLE, "forced-ar", out=3), "out=3 must be a folder"),
        (lambda: ol.generate("hmm", "a", "max-prob", max_new_tokens="5"), "max_new_tokens='5' must be"),
        (lambda: ol.generate("hmm", "a", "max-prob", seed=1.5), r"seed=1\.5 must be a whole number"),
        (lambda: ol.generate("hmm", "a", "max-prob", seed=2**70), "must fit into 64 bits"),
        (lambda: ol.evaluate("hmm", None, "max-prob"), "tasks=None must be a list"),
        (lambda: ol.evaluate("hmm", "arith", "max-prob", limit="1"), "limit='1' must be a whole number"),
        (lambda: ol.score("hmm", ol.Sample("\ud800", "a", "b"), "forced-ar"), "which is not text"),
        (
            lambda: ol.score("hmm", ol.Sample(None, "a", "b"), "forced-ar"),
            "the id must be text or a whole number, not None",
        ),
        (lambda: ol.open_run(3), "3 is not a run folder"),
        (lambda: ol.open_run([]), "no run given"),
    ],
)
def test_wrong_arguments_get_one_clear_line(call: Any, message: str) -> None:
    with pytest.raises(OrderLensError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_number_as_id_is_taken_by_its_digits() -> None:
    rows: list[Any] = [ol.Sample(3, "a"), {"id": 4, "prompt": "b"}]  # type: ignore[arg-type]
    assert as_samples(rows) == [ol.Sample("3", "a"), ol.Sample("4", "b")]


def test_a_template_needs_no_prompt() -> None:
    assert as_samples({"template": "a [[2]]"}) == [ol.Sample("0", "", template="a [[2]]")]
