"""Setups of runs: labels, differences, and which runs may be read together."""

from __future__ import annotations

import itertools
import json

import pytest

from orderlens.analysis import Study
from orderlens.analysis.identity import RUNS_OF, Setup, differences, is_replication, labels
from orderlens.errors import UserInputError
from orderlens.store.reader import open_run

WEIGHTS = {"name": "m", "precision": "float32", "digest": "d" * 32}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, Setup()),
        ({"model": "hmm", "block_size": 8}, Setup("hmm", 8)),
        ({"model": 3}, Setup("3")),
        ({"model": WEIGHTS, "block_size": 4}, Setup("m", 4, "float32", "d" * 32)),
        ({"model": {"name": "m"}}, Setup("m")),
        ({"model": {"name": "m", "weights": "fp8"}}, Setup("m", weight_format="fp8")),
        ({"model": {"name": "m"}, "temperatures": [0.6]}, Setup("m")),
        ({"model": {"name": "m"}, "temperatures": ["0.8:0.4"]}, Setup("m", schedule="0.8:0.4")),
    ],
)
def test_a_spec_says_what_decoded_the_run(spec, expected):
    assert Setup.of(spec) == expected


FULL = Setup("m", 8, "float32", "d1")


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (Setup(), True),
        (Setup("m"), True),
        (Setup(None, 8, None, "d1"), True),
        (Setup("n"), False),
        (Setup("m", 16), False),
        (Setup("m", 8, "bfloat16"), False),
        (Setup("m", 8, "float32", "d2"), False),
    ],
)
def test_setups_fit_unless_something_that_both_say_differs(other, fits):
    assert FULL.fits(other) is other.fits(FULL) is fits


@pytest.mark.parametrize(
    ("setups", "expected"),
    [
        ([Setup("a"), Setup("b")], ["a", "b"]),
        ([Setup(), Setup("b")], ["unnamed model", "b"]),
        ([Setup("a", 8), Setup("a", 16), Setup("b", 8)], ["a, block size 8", "a, block size 16", "b"]),
        (
            [Setup("a", 8, "float32"), Setup("a", 8, None), Setup("a", 16, None)],
            [
                "a, block size 8, precision float32",
                "a, block size 8, precision not recorded",
                "a, block size 16",
            ],
        ),
        (
            [Setup("a", 8, "f", "x" * 32), Setup("a", 8, "f", "y" * 32)],
            [f"a, weights {'x' * 12}…", f"a, weights {'y' * 12}…"],
        ),
        (
            [Setup("a", digest="x"), Setup("a", digest="y", weight_format="fp8")],
            ["a, weight format as stored", "a, weight format fp8"],
        ),
    ],
)
def test_a_label_has_the_model_and_only_what_tells_it_from_the_others(setups, expected):
    found = labels([*setups, *setups])
    assert list(found) == setups
    assert list(found.values()) == expected
    assert len(set(found.values())) == len(setups)


def test_labels_of_every_combination_are_distinct():
    parts = (["a", "b"], [8, 16], ["f", None], ["d" * 24, "e" * 24])
    setups = [Setup(*given) for given in itertools.product(*parts)]
    assert len(set(labels(setups).values())) == len(setups) == 16


@pytest.mark.parametrize(
    ("setups", "expected"),
    [
        ([Setup("a", 8), Setup("a", 8)], ""),
        ([Setup("a", 16), Setup("b", 32), Setup("a", 32)], "model (a, b), block size (16, 32)"),
        ([Setup("a", None, None), Setup("a", 8, "f")], "block size (not recorded, 8), precision "),
        (
            [Setup("a", digest="0" * 32), Setup("a", digest="1" * 32)],
            "weights (000000000000…, 111111111111…)",
        ),
    ],
)
def test_differences_name_every_field_that_differs_once(setups, expected):
    assert differences(setups).startswith(expected)
    assert bool(differences(setups)) is bool(expected)


def test_long_names_of_models_are_told_apart_in_full():
    """Two repositories of one organisation agree in far more than their first letters."""
    names = ["hf:inclusionAI/LLaDA2.0-mini", "hf:inclusionAI/LLaDA2.0-flash"]
    assert differences([Setup(name) for name in names]) == f"model ({', '.join(names)})"


def test_a_study_of_two_setups_says_how_they_differ(tmp_path, builders):
    for name, size in (("one", 8), ("two", 4)):
        run = builders.make_run(
            [builders.trace("a", "max-prob", [-1.0, -2.0])], spec={"model": WEIGHTS, "block_size": size}
        )
        run.save(tmp_path / name)
    study = Study(open_run([tmp_path / "one", tmp_path / "two"]), builders.QUICK)
    assert list(study.by_setup()) == ["m, block size 8", "m, block size 4"]
    with pytest.raises(UserInputError, match=r"differ in block size \(8, 4\); give runs of one model"):
        study.one_setup()
    assert study.narrowed(["one"]).one_setup().setups["one"].block_size == 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory, builders):
    place = tmp_path_factory.mktemp("replication")
    kinds = {"score": None, "measure": None, "generate": 0.0, "questions": 0.0, "sweep": 0.7}
    for name, temperature in kinds.items():
        trace = builders.trace(name, "max-prob", [-1.0, -2.0], temperature=temperature)
        builders.make_run([trace]).save(place / "runs" / name)
    (place / "plan.json").write_text(json.dumps({}), encoding="utf-8")
    return place


@pytest.mark.parametrize(
    ("traces", "name"),
    [("score", "score"), ("generate", "generate"), ("ending", "generate"), ("sweep", "sweep")],
)
def test_each_kind_has_a_run_without_which_it_is_not_there(folder, builders, traces, name):
    assert Study.open(folder, builders.QUICK).main_run(traces) == name
    assert name in RUNS_OF[traces]


@pytest.mark.parametrize(
    ("traces", "samples"),
    [
        ("score", {"score", "measure"}),
        ("generate", {"generate"}),
        ("ending", {"generate", "questions"}),
        ("sweep", {"generate", "sweep"}),
        (None, {"score", "measure", "generate", "questions", "sweep"}),
        ("no such kind", {"score", "measure", "generate", "questions", "sweep"}),
    ],
)
def test_a_view_holds_the_runs_of_its_kind(folder, builders, traces, samples):
    assert is_replication(folder)
    study = Study.open(folder, builders.QUICK)
    assert set(study.view(traces).samples["sample_id"]) == samples


def test_a_kind_is_there_when_its_main_run_is(folder, builders):
    study = Study.open(folder, builders.QUICK)
    assert all(study.has_view(traces) for traces in RUNS_OF)
    part = study.narrowed(["score", "questions"])
    assert set(part.run.names) == {"score", "questions"}
    assert not is_replication(folder / "runs")
    plain = Study.open([folder / "runs" / "score", folder / "runs" / "sweep"], builders.QUICK)
    assert plain.view("score") is plain, "runs named individually are read as they are"
    assert plain.has_view("generate")
