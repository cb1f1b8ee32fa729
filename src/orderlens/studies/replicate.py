"""``orderlens.replicate``: the paper's C4 experiments from plain arguments to results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from orderlens.models.protocol import Model
from orderlens.runs.engine import EngineLike, as_engine
from orderlens.runs.options import Computing, ModelLike, PathLike
from orderlens.studies.replicate_plan import ReplicatePlan, make_plan
from orderlens.studies.results import Results, replicate_results
from orderlens.studies.runner import Show, decode


def replicate(
    model: ModelLike = "tiny",
    data: PathLike | None = None,
    *,
    out: PathLike,
    preset: str = "quick",
    limit: int | None = None,
    temperatures: Sequence[float] | None = None,
    evaluator: str = "auto",
    split: str = "none",
    seed: int = 0,
    block_size: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    engine: EngineLike = None,
    workers: int | None = None,
    show: Show | None = None,
) -> Results:
    """Run the paper's C4 experiments into a folder and read them; the same call resumes what was interrupted.

    Args:
        model: a model, a spec, or the path of a checkpoint folder.
        data: a file or built-in name; ``passages`` for the preset ``demo``, else ``c4``.
        out: the folder; ``index.html`` in it is the page.
        preset: ``demo``, ``quick`` or ``full``.
        limit: number of texts instead of the preset's.
        temperatures: of the sweep instead of the preset's.
        evaluator: autoregressive evaluator of external perplexity.
        split: what is one text in a ``.txt`` file: ``none`` (the file), ``lines`` or ``paragraphs``.
        seed: seed of the token draws at temperature > 0.
        block_size: tokens per block; 32 by default, as in the paper.
        batch_size: texts per work unit; chosen for the model by default.
        device: where to put model and evaluator.
        dtype: precision of the model.
        engine: what computes: ``"local"``, ``"ray"`` or an ``orderlens.Engine``.
        workers: processes or Ray actors that share the work; one per GPU by default.
        show: opens a progress bar per stage.

    Returns:
        Plan, tables, findings, figures and notes.
    """
    if isinstance(model, str | os.PathLike):
        name, loaded = os.fspath(model), None
    else:
        name, loaded = model.name, model
    plan = make_plan(
        preset,
        name,
        None if data is None else os.fspath(data),
        n_texts=limit,
        temperatures=None if temperatures is None else tuple(temperatures),
        evaluator=evaluator,
        split=split,
        seed=seed,
        block_size=block_size,
        batch_size=batch_size,
    )
    computing = Computing(device, dtype, engine=as_engine(engine, workers))
    return run_plan(plan, os.fspath(out), model=loaded, computing=computing, show=show)


def run_plan(
    plan: ReplicatePlan,
    out: str | Path,
    stages: Iterable[str] | None = None,
    *,
    model: Model | None = None,
    computing: Computing | None = None,
    show: Show | None = None,
) -> Results:
    """Run the stages that are not complete yet, then write the results; see ``runner.decode``."""
    decoded = decode(plan, out, stages, model=model, computing=computing, show=show)
    return replicate_results(out, decoded.why_no_scores)
