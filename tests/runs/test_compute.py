"""A unit is plain data: another process computes the same tables from it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.errors import RunError
from orderlens.rules.orders import StaticOrder
from orderlens.runs.compute import ComputeContext, compute, decode_unit, open_model, planned_reveals
from orderlens.runs.job import Job, generate_job, score_job
from orderlens.runs.options import Computing
from orderlens.runs.spec import RunSpec, Unit
from orderlens.tasks.evaluation.job import evaluate_job

TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps. "
SAMPLES = [ol.Sample("a", TEXT[:20], TEXT[20:40]), ol.Sample("b", "", TEXT[:33])]
MODEL = "hmm:seed=3,states=6"


def scoring() -> Job:
    options = Computing(block_size=8, anchor="prompt")
    return score_job(
        MODEL, SAMPLES, "forced-ar,max-prob,oracle-min-q", options, circulation=2, noise_floor=True
    )


def generating() -> Job:
    return generate_job(
        MODEL,
        SAMPLES,
        "max-prob,random:2",
        Computing(block_size=8),
        max_new_tokens=12,
        temperatures=[0.7],
        seed=5,
        stop_at_eos=False,
    )


def evaluating(tmp_path: Path) -> Job:
    row = {"activity_label": "Baking", "ctx_a": "A cook opens the oven.", "ctx_b": "she", "label": "1"}
    file = tmp_path / "scenes.jsonl"
    file.write_text(json.dumps(row | {"endings": ["takes a tray.", "swims.", "paints.", "reads."]}))
    return evaluate_job(
        MODEL,
        "hellaswag,arith",
        "forced-ar",
        Computing(block_size=8),
        limit=1,
        max_new_tokens=8,
        temperature=0.0,
        seed=0,
        sources={"hellaswag": file},
        graders=None,
        chat=True,
    )


def elsewhere(spec: dict[str, Any], unit: dict[str, Any]) -> dict[str, pa.Table]:
    """What another process does: it gets JSON and loads the model itself."""
    opened = RunSpec.from_json(spec)
    return compute(opened, Unit.from_json(unit), open_model(opened))


@pytest.fixture(scope="module")
def pool() -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        yield workers


@pytest.mark.parametrize("kind", ["score", "generate", "evaluate"])
def test_another_process_gives_the_same_tables(kind: str, pool: Any, tmp_path: Path) -> None:
    job = {"score": scoring, "generate": generating, "evaluate": lambda: evaluating(tmp_path)}[kind]()
    sent = json.loads(json.dumps([job.spec.to_json(), job.units[0].to_json()]))
    there, here = pool.apply(elsewhere, sent), compute(job.spec, job.units[0], job.model)
    assert set(there) == set(here)
    for name, table in here.items():
        assert table.num_rows, name
        assert there[name].equals(table), name


def test_a_unit_travels_by_pickle_as_well(pool: Any) -> None:
    job = scoring()
    there = pool.apply(compute, (job.spec, job.units[0], job.model))
    assert there["reveals"].equals(compute(job.spec, job.units[0], job.model)["reveals"])


@pytest.mark.parametrize("kind", [scoring, generating])
def test_tables_are_made_after_decoding_with_texts_remembered(kind: Any, monkeypatch: Any) -> None:
    job, context = kind(), ComputeContext()
    first, again = (decode_unit(job.spec, job.units[0], job.model, context) for _ in range(2))
    monkeypatch.setattr(type(job.model), "open_session", None)  # the model is not asked any more
    tables = first()
    assert dict(zip(*tables["tokens"].to_pydict().values(), strict=True)) == context.pieces
    monkeypatch.setitem(context.pieces, min(context.pieces), "remembered")
    for name, table in again().items():
        assert table.equals(tables[name]) == (name != "tokens")
    assert again()["tokens"]["piece"][0].as_py() == "remembered"


def test_a_model_with_other_weights_is_refused() -> None:
    spec = scoring().spec.to_json()
    spec["model"] = spec["model"] | {"name": "hmm"}
    with pytest.raises(RunError, match="its digest is"):
        open_model(RunSpec.from_json(spec))


class MiddleFirst(StaticOrder):
    id = "middle-first"
    summary = "the middle, then the rest"

    def path(self, n_positions: int, sample_id: str, block: int) -> Any:
        import numpy as np

        return np.roll(np.arange(n_positions), n_positions // 2)


def test_an_order_in_no_registry_works_in_this_process() -> None:
    run = ol.score("hmm", SAMPLES, [MiddleFirst(), "forced-ar"], block_size=8)
    assert set(run.reveals().to_pandas().order) == {"middle-first", "forced-ar"}


def test_progress_is_counted_before_the_work() -> None:
    for job in (scoring(), generating()):
        told: list[int] = []
        compute(job.spec, job.units[0], job.model, ComputeContext(on_reveals=told.append))
        assert sum(told) == planned_reveals(job.spec, job.units[0])
