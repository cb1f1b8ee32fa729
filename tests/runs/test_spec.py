"""The spec's JSON is what runs are resumed by: its fields, their order and their absence are fixed."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.api import Generate, Score
from orderlens.errors import RunError
from orderlens.runs.request import options
from orderlens.runs.spec import RunSpec, refuse_other_model

SAMPLE = ol.Sample("a", "hello", "world")


def test_a_score_states_what_runs_of_schema_1_0_state() -> None:
    spec = ol.score("hmm", SAMPLE, "forced-ar").spec
    known = ["kind", "model", "block_size", "orders", "data", "anchor", "batch_size"]
    assert [name for name in spec if name != "likelihood"] == known
    assert list(spec["model"])[:2] == ["name", "digest"]
    assert spec["batch_size"] == 32
    assert spec["data"] == {"n_samples": 1, "digest": "72321cdc766e5607de59210aed52ceb5"}


def test_a_generation_states_its_settings() -> None:
    spec = ol.generate("hmm", "hello", "max-prob", max_new_tokens=4, temperature=[0, 1]).spec
    assert [name for name in spec if name != "likelihood"][7:] == [
        "max_new_tokens",
        "temperatures",
        "seed",
        "stop_at_eos",
    ]
    assert spec["temperatures"] == [0.0, 1.0]


def test_the_spec_holds_what_determines_the_rows_under_the_names_of_the_request() -> None:
    scored = {
        "circulation": 2,
        "couplings": 1,
        "noise_floor": True,
        "block_size": 8,
        "anchor": "prompt",
        "limit_states": 9,
    }
    decoded = {"max_new_tokens": 4, "seed": 3, "stop_at_eos": False, "block_size": 8, "anchor": "zero"}
    decoded |= {"overflow": "mask", "limit_states": 9}
    for kind, given, run in (
        (Score, scored, ol.score("hmm", SAMPLE, "forced-ar", states=True, **scored)),  # type: ignore[arg-type]
        (Generate, decoded, ol.generate("hmm", "hello", "max-prob", states=True, **decoded)),  # type: ignore[arg-type]
    ):
        stored = {item.name for item in options(kind) if item.opt.stored}
        assert stored == {*given, "chat"} - {"limit_states"}
        assert {name: run.spec[name] for name in given} == given


def test_json_there_and_back() -> None:
    spec = ol.score("hmm", SAMPLE, "forced-ar,random:2", circulation=3, noise_floor=True).spec
    assert spec["circulation"] == 3
    assert RunSpec.from_json(spec).to_json() == spec


def test_a_run_that_was_not_decoded_is_no_job() -> None:
    with pytest.raises(RunError, match="kind 'external' has no 'model'"):
        RunSpec.from_json({"kind": "external"})


def test_another_model_is_refused_by_what_differs() -> None:
    model = ol.load_model("hmm")
    job = RunSpec.from_json(ol.score(model, SAMPLE, "forced-ar").spec)
    refuse_other_model(job, model)
    with pytest.raises(RunError, match=r"is not the one of the run \('hmm'\): its digest is "):
        refuse_other_model(job, ol.load_model("hmm:seed=5"))
    other = RunSpec.from_json(job.to_json() | {"block_size": 8})
    with pytest.raises(RunError, match="the model has block size 32, but the run has 8"):
        refuse_other_model(other, model)
