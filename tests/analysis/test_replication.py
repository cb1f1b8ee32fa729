"""Which runs of a replication are read together, and how a study of its folder follows that."""

from __future__ import annotations

import json

import pytest

from orderlens.analysis import Study
from orderlens.analysis.setups import RUNS_OF, is_replication


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
    assert plain.view("score") is plain, "runs named one by one are read as they are"
    assert plain.has_view("generate")
