"""Which samples a page holds: evenly by Var, once per prompt, until the page would grow too large."""

from __future__ import annotations

import base64
import gzip
import json

import numpy as np
import pytest

from orderlens.analysis import Study
from orderlens.show.report.build import choose_samples, pack, pack_samples
from orderlens.store.reader import open_run
from orderlens.testing import make_run, make_trace


def spread(sample, var):
    half = np.sqrt(var)
    return [
        make_trace(sample, order, [-3 - half * factor, -3 + half * factor])
        for order, factor in (("max-prob", 1.0), ("random", 1.0))
    ]


@pytest.fixture(scope="module")
def study():
    variances = {"d": 1.0, "a": 4.0, "c": 0.25, "b": 2.25, "e": 6.25}
    return Study(make_run([trace for name, var in variances.items() for trace in spread(name, var)]))


def bundle(packed):
    return json.loads(gzip.decompress(base64.b64decode(packed.data)))


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (0, ""),
        (-3, ""),
        (1, "e"),
        (2, "ec"),
        (3, "ebc"),
        (4, "eadc"),
        (5, "eabdc"),
        (99, "eabdc"),
    ],
)
def test_samples_are_taken_evenly_from_the_highest_var_to_the_lowest(study, count, chosen):
    found, total = choose_samples(study, count)
    assert [name for _, name in found] == list(chosen)
    assert total == 5


def test_a_sample_without_var_comes_last_and_ties_go_by_name():
    traces = [*spread("a", 1.0), *spread("b", 1.0), make_trace("x", "max-prob", [-1.0, np.nan])]
    found, _ = choose_samples(Study(make_run(traces)), 3)
    assert [name for _, name in found] == ["b", "a", "x"]


def test_a_sample_of_two_runs_is_one_sample_named_by_the_first(tmp_path):
    for name, order in (("one", "max-prob"), ("two", "random")):
        trace = make_trace("s", order, [-1.0, -2.0])
        row = {"sample_id": "s", "order": order, "text": "t", "prompt_text": "p"}
        make_run([trace], spec={"model": "m", "part": name}, outputs=[row]).save(tmp_path / name)
    found, total = choose_samples(Study(open_run([tmp_path / "one", tmp_path / "two"])), 5)
    assert (found, total) == ([("one", "s")], 1)


def test_what_is_packed_is_what_was_chosen_and_the_note_says_how_many(study):
    packed = pack_samples(study, 2)
    held = bundle(packed)
    assert [sample["sample_id"] for sample in held["samples"]] == ["e", "c"]
    assert len(held["rows"]) == 4
    assert held["catalogue"]["orders"] == ["max-prob", "random"]
    assert held["catalogue"]["graded"] is False
    assert packed.note == "2 of 5 samples, evenly from the highest to the lowest mean Var."
    assert pack_samples(study, 5).note == "All samples: 5."
    assert pack_samples(study, 0) is None
    assert packed == pack_samples(study, 2), "the same bytes again"


def test_samples_that_do_not_fit_are_left_out_but_never_all(study, monkeypatch):
    chosen, total = choose_samples(study, 5)
    monkeypatch.setattr("orderlens.show.report.build.MOST_BYTES", 1)
    packed = pack(study.run, chosen, total)
    assert [sample["sample_id"] for sample in bundle(packed)["samples"]] == ["e"]
    assert packed.note.startswith("1 of 5 samples")
