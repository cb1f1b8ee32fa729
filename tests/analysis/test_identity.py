"""The same prompt across runs: by task, id and text; texts under one id stay apart, and that is said."""

from __future__ import annotations

import pandas as pd
import pytest

from orderlens.analysis.identity import Setup, labels, prompt_keys, repeated_traces
from orderlens.errors import UserInputError
from orderlens.store.reader import open_run


@pytest.fixture
def opened(tmp_path, builders):
    """Return a function that writes runs, given as {id: (prompt, text)}, and opens them together."""

    def together(*runs, temperature=None):
        places = []
        for number, texts in enumerate(runs):
            traces = [
                builders.trace(name, "max-prob", [-1.0, -2.0], temperature=temperature) for name in texts
            ]
            outputs = [
                {"sample_id": name, "order": "max-prob", "temperature": temperature}
                | {"prompt_text": prompt, "text": text}
                for name, (prompt, text) in texts.items()
            ]
            places.append(tmp_path / f"r{number}")
            builders.make_run(traces, spec={"n": number}, outputs=outputs).save(places[-1])
        run = open_run(places)
        return run, run.samples().to_pandas()

    return together


def test_equal_texts_have_equal_keys_whatever_the_run(opened):
    same = {"a": ("ask", "tell"), "b": ("ask", "more")}
    keys, remarks = prompt_keys(*opened(same, same))
    assert sorted(keys) == ["a", "a", "b", "b"]
    assert remarks == []


@pytest.mark.parametrize(
    ("second", "clashes", "said"),
    [
        (
            {"a": ("ask", "other"), "b": ("ask", "more")},
            {"a"},
            "Sample 'a': different texts in the runs",
        ),
        ({"a": ("other", "tell"), "b": ("no", "more")}, {"a", "b"}, "Sample 'a' and 1 more: different texts"),
    ],
)
def test_other_texts_under_one_id_stay_apart_and_are_named(opened, second, clashes, said):
    keys, (remark,) = prompt_keys(*opened({"a": ("ask", "tell"), "b": ("ask", "more")}, second))
    assert {key.partition("@")[0] for key in keys if "@" in key} == clashes
    assert len(set(keys)) == 2 + len(clashes)
    assert remark.startswith(said)
    assert "r0, r1" in remark


def test_task_and_id_never_join_to_the_key_of_another_sample(builders):
    pairs = [(None, "t/x"), ("t", "x"), ("a/b", "c"), ("a", "b/c"), (None, "a/b/c"), ("", "x"), ("%", "x")]
    pairs += [(None, "/x"), (None, "x"), ("a%2Fb", "c")]
    run = builders.make_run([builders.trace(name, "max-prob", [-1.0], task=task) for task, name in pairs])
    frame = run.samples().to_pandas().assign(run="r")
    keys, remarks = prompt_keys(run, frame)
    assert (len(set(keys)), remarks) == (len(pairs), [])
    assert {"x", "t/x", "/t/x"} <= set(keys)


def test_generated_texts_may_differ_under_one_prompt(opened):
    run, frame = opened({"a": ("ask", "tell")}, {"a": ("ask", "shout")}, temperature=0.0)
    assert prompt_keys(run, frame) == (["a", "a"], [])


ROW = {"model": "m", "prompt": "p", "order": "o", "seed": None, "temperature": 0.0, "sample_seed": 0}


@pytest.mark.parametrize(
    ("second", "again"),
    [
        ({"log_prob": -2.0}, True),
        ({"log_prob": -2.0001}, True),
        ({"log_prob": -2.0, "order": "x"}, False),
        ({"log_prob": -2.0, "seed": 1}, False),
        ({"log_prob": -2.0, "model": "x"}, False),
        ({"log_prob": -2.0, "temperature": 0.5}, False),
    ],
)
def test_a_trace_in_two_runs_counts_once(second, again):
    one = ROW | {"run": "r0", "sample_id": "a", "n": 3, "log_prob": -2.0}
    found, remarks = repeated_traces(pd.DataFrame([one, one | {"run": "r1"} | second]))
    assert found.tolist() == [False, again]
    assert remarks == (["1 trace is stored in more than one run and counted once."] if again else [])


@pytest.mark.parametrize("second", [{"log_prob": -2.1}, {"n": 4}])
def test_different_traces_under_one_name_are_refused(second):
    one = ROW | {"run": "r0", "sample_id": "a", "n": 3, "log_prob": -2.0}
    with pytest.raises(UserInputError, match="run 'r1' and another hold different traces of sample 'a'"):
        repeated_traces(pd.DataFrame([one, one | {"run": "r1"} | second]))


def test_setups_fit_where_both_say_the_same():
    whole = {"model": {"name": "m", "precision": "float32", "digest": "d"}, "block_size": 8}
    mine = Setup.of(whole | {"temperatures": [0.0, "0.8:0.4"]})
    assert (mine.model, mine.precision, mine.digest, mine.schedule) == ("m", "float32", "d", "0.8:0.4")
    assert mine.fits(Setup.of({"model": "m"})), "fields that one of them lacks do not count"
    for change in ({"block_size": 16}, {"model": {"name": "m", "precision": "float32", "digest": "e"}}):
        assert not Setup.of(whole).fits(Setup.of(whole | change)), change
    assert list(labels([Setup.of({})]).values()) == ["unnamed model"]
