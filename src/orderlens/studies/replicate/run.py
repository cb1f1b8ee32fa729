"""A replication from plan to page: the stages, then everything that is made of their traces.

Layout of the folder: ``plan.json``, ``runs/`` (score, measure, questions, together, generate, sweep and
external-…), ``tables/``, ``figures/``, ``findings.json``, ``findings.txt``, ``results.md``, ``index.html``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orderlens.errors import RunError
from orderlens.models.abilities import ReleasesMemory, SuggestsBatch, device_type
from orderlens.models.protocol import Model
from orderlens.runs.options import Computing, with_block_size
from orderlens.studies.plans import steps_in_order
from orderlens.studies.replicate.external import read_scores
from orderlens.studies.replicate.pace import LEAST, Pace, Show
from orderlens.studies.replicate.plan import Plan, Stored, device_batch, kept_plan, read_plan, save_plan
from orderlens.studies.replicate.stages import MODEL_STAGES, Bench, is_done, score_from_outside
from orderlens.texts.datafiles import SplitRule, describe, load_data

if TYPE_CHECKING:
    from orderlens.studies.replicate.results import Results

DECODING = (*MODEL_STAGES, "external")
STAGES = (*DECODING, "results")
"""The stages in their usual order; ``results`` needs no model and no GPU."""
MEASURING = 12
"""Reveals that measuring the noise floor costs per token of its few texts, about."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replication left behind.

    Attributes:
        plan: what was computed.
        results: tables, findings and figures.
        seconds: wall time by stage (only what this call computed).
        notes: what a reader should know: fewer texts than wanted, no evaluator, and the like.
    """

    plan: Plan
    results: Results
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traces:
    """What the stages with forward passes left: the plan as it was run, and what could not be done."""

    plan: Plan
    notes: tuple[str, ...]
    seconds: dict[str, float]
    why_no_scores: str | None = None


def run_plan(
    plan: Plan,
    out: str | Path,
    *,
    stages: Iterable[str] = DECODING,
    model: Model | None = None,
    computing: Computing | None = None,
    show: Show | None = None,
) -> Outcome:
    """Run every stage that is not committed yet, then make tables, findings, figures and the page.

    Args:
        plan: what to compute; a folder that was started with another plan is refused.
        out: the folder.
        stages: which of ``DECODING`` to run.
        model: a loaded model instead of ``plan.model``.
        computing: device of model and evaluator, precision, and who computes the forward passes.
        show: opens a progress bar per stage.
    """
    traces = decode_all(plan, out, stages=stages, model=model, computing=computing, show=show)
    outcome = make_results(out, traces.why_no_scores)
    return replace(outcome, seconds={**traces.seconds, **outcome.seconds})


def make_results(out: str | Path, why_no_scores: str | None = None) -> Outcome:
    """Make tables, findings, figures and the page from the runs that a folder holds; needs no model."""
    from orderlens.studies.replicate.results import write_results

    start = time.perf_counter()
    folder = Path(out)
    stored = read_plan(folder)
    if stored is None:
        raise RunError(f"{folder} holds no replication; start one with orderlens replicate --out {folder}")
    plan = stored.plan
    scores = read_scores(folder / "runs", plan.evaluator)
    why = None if scores else why_no_scores or "the generated texts were not scored (stage external)"
    notes = tuple(_notes(stored, why))
    results = write_results(folder, plan, scores, why, notes)
    return Outcome(plan, results, {"results": time.perf_counter() - start}, notes)


def decode_all(
    plan: Plan,
    out: str | Path,
    *,
    stages: Iterable[str] = DECODING,
    model: Model | None = None,
    computing: Computing | None = None,
    show: Show | None = None,
) -> Traces:
    """Run stages with forward passes; see ``run_plan`` for the arguments.

    A stage whose rows are all committed is passed over, and where all are, no model is loaded at all.
    """
    folder, bars, computing = Path(out), show or _no_bar, computing or Computing()
    wanted = check_stages(stages, DECODING)
    stored = kept_plan(folder, plan)
    if stored is not None:
        save_plan(folder, stored)
    due = [name for name in wanted if stored is None or not is_done(name, stored.plan, folder / "runs")]
    seconds: dict[str, float] = {}
    if any(name in MODEL_STAGES for name in due):
        pace = Pace(plan.budget_s)
        loaded = computing.load(plan.model) if model is None else model
        bench = replace(_open_bench(stored, plan, loaded, folder, bars), computing=computing)
        stored = _settle(folder, stored, bench)
        for name in [name for name in MODEL_STAGES if name in due]:
            stored = _sized(folder, stored, name, pace)
            with _timed(seconds, name):
                _run_stage(name, bench, stored, pace)
        if isinstance(loaded, ReleasesMemory):  # the evaluator may be on the same device
            loaded.release_memory()
    if stored is None:
        raise RunError(f"{folder} holds no generated texts yet; run the other stages first")
    why = None
    if "external" in due:
        with _timed(seconds, "external"):
            why = score_from_outside(stored.plan, folder / "runs", computing.device, bars)
    return Traces(stored.plan, tuple(_notes(stored, why)), seconds, why)


def undone(plan: Plan, out: str | Path) -> list[str]:
    """Return the stages with forward passes of the model that are not all committed."""
    return [name for name in MODEL_STAGES if not is_done(name, plan, Path(out) / "runs")]


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


def _run_stage(name: str, bench: Bench, stored: Stored, pace: Pace) -> None:
    n, tokens = stored.sizes.get(name, len(bench.samples)), _tokens(stored)
    reveals = name != "measure"  # whose tokens cost something else and say nothing about the others
    show = pace.watching(bench.show) if reveals else bench.show
    MODEL_STAGES[name](replace(bench.cut(n, tokens), show=show))


def _tokens(stored: Stored) -> int:
    """Return how many tokens of each text are taken: a slow machine takes one block."""
    return stored.sizes.get("tokens", stored.plan.target_tokens)


def _sized(folder: Path, stored: Stored, stage: str, pace: Pace) -> Stored:
    """Decide how much of the texts a stage takes where time is limited; once started, it keeps that."""
    plan = stored.plan
    if not plan.budget_s or not plan.orders_of(stage) or stage in stored.sizes:
        return stored
    ahead = [name for name in MODEL_STAGES if plan.orders_of(name) and name not in stored.sizes]
    orders = sum(map(plan.orders_of, ahead))
    measuring = MEASURING * plan.measured_sequences if stage == "score" else 0
    if not stored.sizes and not pace.allows(plan.target_tokens * (LEAST * orders + measuring)):
        stored = replace(stored, sizes={"tokens": min(plan.block_size, plan.target_tokens)})
    tokens = _tokens(stored)
    most = min(
        [int(stored.data["n_samples"]), *(stored.sizes[name] for name in DECODING if name in stored.sizes)]
    )
    n = pace.fit(most, tokens * orders, tokens * measuring)
    stored = replace(stored, sizes={**stored.sizes, stage: n})
    save_plan(folder, stored)
    return stored


def check_stages(stages: Iterable[str], known: Sequence[str] = STAGES) -> list[str]:
    """Return the stages in their usual order; an unknown one is answered with the nearest known one."""
    return steps_in_order("stage", stages, known)


def _open_bench(stored: Stored | None, plan: Plan, model: Model, folder: Path, show: Show) -> Bench:
    loaded = with_block_size(model, plan.block_size)
    chosen = stored.plan if stored else plan
    if not chosen.batch_size and not isinstance(loaded, SuggestsBatch):
        chosen = replace(chosen, batch_size=device_batch(device_type(loaded)))
    rule = SplitRule(chosen.prefix_tokens, chosen.target_tokens, split=chosen.split)
    data = load_data(plan.data, loaded.tokenizer, rule, limit=chosen.n_sequences, choose_by_hash=True)
    return Bench(chosen, loaded, data, folder / "runs", show)


def _settle(folder: Path, stored: Stored | None, bench: Bench) -> Stored:
    """Record what is computed, or check that it is what the folder was started with."""
    model = {"name": bench.model.name, "digest": bench.model.digest}
    data = {**bench.data.record(by_name=True), "n_samples": len(bench.samples), "digest": bench.data_digest()}
    if stored is None:
        stored = Stored(bench.plan, data, model)
        save_plan(folder, stored)
        return stored
    for what, old, new in (("model", stored.model, model), ("data", stored.data, data)):
        if old.get("digest") != new["digest"]:
            raise RunError(
                f"{folder} was started with another {what} ({old.get('digest')}, now {new['digest']}); "
                "choose a new folder, or the one it was started with"
            )
    return stored


def _no_bar(_label: str) -> AbstractContextManager[None]:
    return nullcontext()


def _notes(stored: Stored, why_no_evaluator: str | None) -> list[str]:
    plan, data = stored.plan, stored.data
    notes = []
    if data["n_samples"] < plan.n_sequences:
        notes.append(f"{data['n_samples']} of {plan.n_sequences} wanted texts: the data hold no more.")
    said = describe(data, remedies=False)
    if any((data.get("left_out") or {}).values()):
        notes.append(f"{said[0]}.")
    notes += [f"{line}." for line in said[1:]]
    taken = {stage: n for stage, n in stored.sizes.items() if stage != "tokens"}
    if min(taken.values(), default=data["n_samples"]) < data["n_samples"] or "tokens" in stored.sizes:
        listed = ", ".join(f"{stage} {n}" for stage, n in taken.items())
        length = (
            f", {_tokens(stored)} of {plan.target_tokens} tokens each" if "tokens" in stored.sizes else ""
        )
        notes.append(f"This machine had time for {listed} of {data['n_samples']} texts{length}.")
    if why_no_evaluator:
        notes.append(f"No external perplexity with {plan.evaluator}: {why_no_evaluator}.")
    return notes
