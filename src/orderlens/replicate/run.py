"""A replication from plan to page: the stages, then everything that is made of their traces.

Layout of the folder: ``plan.json``, ``runs/`` (score, measure, generate, sweep, tokens, external-…),
``tables/``, ``figures/``, ``verdicts.json``, ``verdicts.txt``, ``results.md``, ``index.html``.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from orderlens import api
from orderlens.datafiles import LoadedData, SplitRule, load_samples
from orderlens.models.loading import load_model
from orderlens.models.protocol import Model
from orderlens.replicate.external import StoredScores
from orderlens.replicate.plan import Plan, kept_plan, save_plan, sized
from orderlens.replicate.results import Results, write_results
from orderlens.replicate.stages import STAGES, Bench, Show, score_from_outside, seconds_per_state


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replication left behind.

    Attributes:
        plan: what was computed.
        results: tables, verdicts and figures.
        seconds: wall time by stage (only what this call computed).
        notes: what a reader should know: fewer texts than wanted, no evaluator, and the like.
    """

    plan: Plan
    results: Results
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def replicate(
    plan: Plan,
    out: str | Path,
    *,
    model: Model | None = None,
    device: str | None = None,
    dtype: str | None = None,
    show: Show | None = None,
) -> Outcome:
    """Run every stage that is not committed yet, then make tables, verdicts, figures and the page.

    Args:
        plan: what to compute; a folder that was started with another plan is refused.
        out: the folder.
        model: a loaded model instead of ``plan.model``.
        device: where to put the model and the evaluator.
        dtype: precision of the model's weights.
        show: opens a progress bar per stage.
    """
    traces = decode_all(plan, out, model=model, device=device, dtype=dtype, show=show)
    start = time.perf_counter()
    results = write_results(Path(out), traces.plan, traces.scores, traces.why_no_scores, traces.notes)
    seconds = {**traces.seconds, "results": time.perf_counter() - start}
    return Outcome(traces.plan, results, seconds, traces.notes)


@dataclass(frozen=True, slots=True)
class Traces:
    """What the stages with forward passes left: the plan as it was run, and the external scores."""

    plan: Plan
    scores: StoredScores | None
    why_no_scores: str | None
    notes: tuple[str, ...]
    seconds: dict[str, float]


def decode_all(
    plan: Plan,
    out: str | Path,
    *,
    model: Model | None = None,
    device: str | None = None,
    dtype: str | None = None,
    show: Show | None = None,
) -> Traces:
    """Run the stages that need a model; see ``replicate`` for the arguments."""
    folder = Path(out)
    kept = kept_plan(folder, plan)
    loaded = load_model(plan.model, device=device, dtype=dtype) if model is None else model
    loaded = api.prepare_model(loaded, plan.block_size)
    chosen = kept or sized(plan, 0.0 if plan.n_sequences else seconds_per_state(loaded, plan))
    rule = SplitRule(chosen.prefix_tokens, chosen.target_tokens)
    data = load_samples(chosen.data, loaded.tokenizer, rule, limit=chosen.n_sequences, choose_by_hash=True)
    about = {"name": loaded.name, "digest": loaded.digest}
    save_plan(folder, chosen, {"data": data.record(), "model": about})
    bench = Bench(chosen, loaded, data, folder / "runs", show or _no_bar)
    seconds = {}
    for name, stage in STAGES.items():
        start = time.perf_counter()
        stage(bench)
        seconds[name] = time.perf_counter() - start
    start = time.perf_counter()
    scores, why = score_from_outside(bench, device)
    seconds["external"] = time.perf_counter() - start
    return Traces(chosen, scores, why, tuple(_notes(chosen, data, why)), seconds)


def _no_bar(_label: str) -> AbstractContextManager[None]:
    return nullcontext()


def _notes(plan: Plan, data: LoadedData, why_no_evaluator: str | None) -> list[str]:
    notes = []
    if len(data.samples) < plan.n_sequences:
        notes.append(
            f"{len(data.samples)} of {plan.n_sequences} wanted texts: only so many have "
            f"{plan.prefix_tokens} + {plan.target_tokens} tokens ({data.n_too_short} were too short)."
        )
    if why_no_evaluator:
        notes.append(f"No external perplexity with {plan.evaluator}: {why_no_evaluator}.")
    return notes
