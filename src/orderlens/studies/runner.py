"""Runs the parts of a study that need forward passes, one run folder per part; complete runs are kept.

Needs only the packages of decoding, so that a machine without the analysis packages can run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeAlias

from orderlens.common.machine import process_memory
from orderlens.decode.target_states import plan_canvases
from orderlens.errors import RunError
from orderlens.models.abilities import ReleasesMemory, SuggestsBatch, device_type
from orderlens.models.protocol import Model
from orderlens.rules import parse_policies
from orderlens.runs.job import Job, generate_job, score_job
from orderlens.runs.options import Computing, ProgressSink, with_block_size
from orderlens.runs.run import run_in_memory, run_job
from orderlens.runs.spec import RunSpec, describe_data, describe_model, samples_digest
from orderlens.store.reader import open_run
from orderlens.store.records import SPEC
from orderlens.studies.external import external_folder, find_evaluator, score_texts
from orderlens.studies.plan import EXTERNAL, GPU_BATCH, RESULTS, Plan, PlanT, RunPart, Stored, resumed_plan
from orderlens.tasks.bundled import frozen_items
from orderlens.tasks.evaluation.job import evaluate_job
from orderlens.texts.loading import LoadedData, SplitRule, describe, load_data
from orderlens.texts.samples import Sample, encode_samples

Show: TypeAlias = Callable[[str], AbstractContextManager[ProgressSink | None]]
"""Opens a progress bar with a label; a part advances it by tokens."""
MEASURE_BATCH = 8
"""Texts per work unit when the noise floor is measured."""
MIN_TIMED_S = 2.0
"""Minimum seconds of decoding for a usable speed estimate."""

PROBE_ITEMS, PROBE_TOKENS = 2, 32
"""Items and new tokens of the probe before tasks are answered."""


@dataclass(frozen=True, slots=True)
class Decoded(Generic[PlanT]):
    """Result of the stages with forward passes.

    Attributes:
        plan: the plan as it is run.
        notes: remarks: fewer texts than requested, no evaluator, and similar.
        seconds: wall time by stage, only for stages that this call computed.
        why_no_scores: why the evaluator scored nothing.
    """

    plan: PlanT
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    why_no_scores: str | None = None


def decode(
    plan: PlanT,
    out: str | Path,
    stages: Iterable[str] | None = None,
    *,
    model: Model | None = None,
    computing: Computing | None = None,
    show: Show | None = None,
    on_forecast: Callable[[str], None] | None = None,
    on_estimate: Callable[[str], None] | None = None,
) -> Decoded[PlanT]:
    """Compute what the folder does not hold yet; if it is complete, no model is loaded.

    Args:
        plan: what to compute; a folder that was started with another plan is refused.
        out: the folder.
        stages: which stages; all with forward passes by default.
        model: a loaded model instead of ``plan.model``.
        computing: device of model and evaluator, precision and engine.
        show: opens a progress bar per part.
        on_forecast: receives a forecast of the remaining time after the first stage.
        on_estimate: receives an estimate of time and memory before tasks are answered, from a short probe.
    """
    folder, show, computing = Path(out), show or _no_bar, computing or Computing()
    wanted = [name for name in plan.in_order(stages) if name != RESULTS]
    place, stored = plan.data, resumed_plan(folder, plan)
    if stored is not None:
        stored.save(folder)
        plan = stored.plan
    due = [name for name in wanted if not is_done(name, plan, folder / "runs")]
    seconds: dict[str, float] = {}
    if due not in ([], [EXTERNAL]):
        loaded = computing.load(plan.model) if model is None else model
        runner = open_part_runner(replace(plan, data=place), loaded, folder, computing)
        stored = _record_or_check(folder, stored, runner)
        plan = stored.plan
        if not plan.has_texts:
            jobs = runner.task_jobs([part for name in due for part in plan.parts_of(name)])
            if on_estimate is not None and jobs:  # another process may have completed them
                on_estimate(runner.estimate(jobs))
        for name in [name for name in due if name != EXTERNAL]:
            with _timed(seconds, name):
                for part in plan.parts_of(name):
                    runner.run(part, show)
            if on_forecast and len(seconds) == 1 and (text := forecast(plan, due, seconds[name])):
                on_forecast(text)
        if isinstance(runner.model, ReleasesMemory):  # the evaluator may be on the same device
            runner.model.release_memory()
    why = None
    if EXTERNAL in due:
        with _timed(seconds, EXTERNAL):
            why = score_externally(plan, folder / "runs", computing.device, show)
    notes = notes_of(stored, why) if stored else plan.notes()
    return Decoded(plan, tuple(notes), seconds, why)


def is_done(stage: str, plan: Plan, runs: Path) -> bool:
    """Return whether all results of a stage are committed."""
    names = [part.folder for part in plan.parts_of(stage)]
    folders = (
        [external_folder(runs, plan.evaluator)] if stage == EXTERNAL else [runs / name for name in names]
    )
    return all(map(_is_complete, folders))


def _is_complete(folder: Path) -> bool:
    return (folder / SPEC).is_file() and open_run(folder).is_complete


def incomplete_stages(plan: Plan, out: str | Path) -> list[str]:
    """Return the stages with forward passes of the model that are not all committed."""
    return [name for name in plan.model_stages() if not is_done(name, plan, Path(out) / "runs")]


def forecast(plan: Plan, stages: Sequence[str], seconds: float) -> str:
    """Return how long the stages after the first will take at its speed; empty if unknown."""
    first, *rest = (plan.tokens_of(name) for name in stages)
    if seconds < MIN_TIMED_S or not first or not sum(rest):
        return ""
    minutes = max(1, round(sum(rest) / first * seconds / 60))
    return f"{stages[0]}: {seconds:.0f} s; {', '.join(stages[1:])}: up to about {minutes} min more"


def score_externally(plan: Plan, runs: Path, device: str | None, show: Show) -> str | None:
    """Score the generated texts with the plan's evaluator; return the reason where there is none.

    Raises:
        RunError: the texts are not complete yet.
    """
    missing = [stage for stage in plan.generating if not is_done(stage, plan, runs)]
    if missing:
        option = f"--{plan.word}s {','.join(missing)}"
        raise RunError(f"{plan.word} {EXTERNAL} needs all generated texts: run {option} first")
    evaluator, why = find_evaluator(plan.evaluator, device)
    if evaluator is None:
        return why
    run = open_run([runs / part.folder for stage in plan.generating for part in plan.parts_of(stage)])
    with show("scoring externally (texts)") as bar:
        score_texts(run, evaluator, external_folder(runs, plan.evaluator), bar)
    return None


@dataclass(frozen=True, slots=True)
class PartRunner(Generic[PlanT]):
    """Runs the parts of a study with one plan, model and set of texts."""

    plan: PlanT
    model: Model
    data: LoadedData
    runs: Path
    computing: Computing = field(default_factory=Computing)

    def run(self, part: RunPart, show: Show) -> None:
        """Compute the missing units of one part."""
        if not part.orders:
            raise RunError(f"no policy can generate: all of them need the target; leave out {part.stage}")
        with show(f"{part.label} (tokens)" if part.tokens else part.label) as bar:
            options = self._options(part, bar)
            run_job(self._job(part, options), options)

    def task_jobs(self, parts: Sequence[RunPart]) -> list[tuple[RunPart, Job]]:
        """Return the task parts that are not complete, each with its job.

        All are read before the first is decoded, so that missing data are found early.
        """
        due = [part for part in parts if not _is_complete(self.runs / part.folder)]
        return [(part, self._job(part, replace(self._options(part, None), out=None))) for part in due]

    def estimate(self, jobs: Sequence[tuple[RunPart, Job]]) -> str:
        """Return time and memory of task parts, from decoding a few items of the first."""
        probe = self._probe(jobs[0][0])
        start = time.perf_counter()
        n_tokens = len(run_in_memory(probe).reveals().to_arrow())
        speed = n_tokens / (time.perf_counter() - start)
        most = length = 0
        for part, job in jobs:
            anchor, n_new = job.spec.anchor or self.model.anchor, part.settings["max_new_tokens"]
            canvases = plan_canvases(self.model.block_size, job.samples, anchor, n_new)
            most += len(part.orders) * sum(canvas.fill_end - canvas.prompt_length for canvas in canvases)
            length = max([length, *(canvas.fill_end for canvas in canvases)])
        used = process_memory()
        room = "memory is not known without psutil"
        if used:
            room = f"a worker uses {used / 2**30:.1f} GiB after the probe, more with larger batches"
        if isinstance(self.model, SuggestsBatch):
            room = f"{self.model.suggested_batch(length):,} sequences of {length:,} positions fit in memory"
        return (
            f"{most:,} tokens at most, less where EOS comes earlier; {speed:,.0f} tokens/s in a probe of "
            f"{n_tokens} tokens, so at most about {_duration(most / speed)} per worker; {room}"
        )

    def _probe(self, part: RunPart) -> Job:
        """Return the job of a part's first items with short responses; its run is not stored."""
        settings = {**part.settings, "limit": PROBE_ITEMS}
        settings["max_new_tokens"] = min(PROBE_TOKENS, settings["max_new_tokens"])
        return evaluate_job(
            self.model, orders=part.orders, options=replace(self._options(part, None), out=None), **settings
        )

    def _job(self, part: RunPart, options: Computing) -> Job:
        if part.kind == "evaluate":
            return evaluate_job(self.model, orders=part.orders, options=options, **part.settings)
        if part.kind == "measure":
            return self._measuring(part, **part.settings)
        make = score_job if part.kind == "score" else generate_job
        return make(self.model, self._data(part).samples, part.orders, options, **part.settings)

    def _data(self, part: RunPart) -> LoadedData:
        if not part.questions:
            return self.data
        items = frozen_items("questions")[: part.questions]
        return LoadedData([Sample(item["id"], item["prompt"]) for item in items], "questions", len(items))

    def _options(self, part: RunPart, progress: ProgressSink | None) -> Computing:
        return replace(
            self.computing,
            out=self.runs / part.folder,
            block_size=self.plan.block_size or None,
            batch_size=self.plan.batch_size or None,
            data_record=None if part.kind == "evaluate" else self._data(part).record(by_name=True),
            progress=progress,
        )

    def _measuring(self, part: RunPart, texts: int, circulation_pairs: int) -> Job:
        """Return the job of noise floor and circulation on a few texts; their traces are not stored twice."""
        orders = parse_policies(part.orders)
        samples = encode_samples(self.model, self.data.samples[:texts], need_target=True)
        spec = RunSpec(
            "measure",
            describe_model(self.model),
            self.model.block_size,
            tuple(order.spec for order in orders),
            describe_data(samples, self.data.record(by_name=True)),
            circulation=circulation_pairs,
            batch_size=min(self.plan.batch_size or MEASURE_BATCH, MEASURE_BATCH),
        )
        return Job(spec, samples, self.model, orders)


def open_part_runner(plan: PlanT, model: Model, folder: Path, computing: Computing) -> PartRunner[PlanT]:
    """Load the texts of a study and choose the batch size for the device."""
    model = with_block_size(model, plan.block_size or None)
    if not plan.batch_size and not isinstance(model, SuggestsBatch):
        plan = replace(plan, batch_size=GPU_BATCH if device_type(model) == "cuda" else plan.cpu_batch)
    if not plan.has_texts:
        return PartRunner(plan, model, LoadedData([], "tasks", 0), folder / "runs", computing)
    rule = SplitRule(plan.prefix_tokens, plan.target_tokens, split=plan.split)
    data = load_data(plan.data, model.tokenizer, rule, limit=plan.n_texts, choose_by_hash=True)
    return PartRunner(plan, model, data, folder / "runs", computing)


def _record_or_check(folder: Path, stored: Stored[PlanT] | None, runner: PartRunner[PlanT]) -> Stored[PlanT]:
    """Record model and data of a new study, or check them against the folder's record."""
    scorable = all(sample.target is not None for sample in runner.data)
    texts = runner.data.samples
    encoded = encode_samples(runner.model, texts, need_target=scorable) if texts else ()
    digest = samples_digest(encoded)
    model = {"name": runner.model.name, "digest": runner.model.digest}
    data = {**runner.data.record(by_name=True), "n_samples": len(runner.data), "digest": digest}
    if stored is None:
        stored = Stored(runner.plan, data, model)
        stored.save(folder)
        return stored
    for what, old, new in (("model", stored.model, model), ("data", stored.data, data)):
        if old.get("digest") != new["digest"]:
            raise RunError(
                f"{folder} was started with another {what} ({old.get('digest')}, now {new['digest']}); "
                "choose a new folder, or the one it was started with"
            )
    return stored


def notes_of(stored: Stored[PlanT], why_no_scores: str | None) -> list[str]:
    """Return remarks on a study, a sentence each."""
    plan, data = stored.plan, stored.data
    notes = plan.notes()
    if not plan.has_texts:
        return notes
    if data["n_samples"] < plan.n_texts:
        notes.append(f"{data['n_samples']} of {plan.n_texts} requested texts: the data hold no more.")
    said = describe(data, remedies=False)
    if any((data.get("left_out") or {}).values()):
        notes.append(f"{said[0]}.")
    notes += [f"{line}." for line in said[1:]]
    if why_no_scores:
        notes.append(f"No external perplexity with {plan.evaluator}: {why_no_scores}.")
    return notes


def _duration(seconds: float) -> str:
    """Return seconds as minutes, hours or days, at least two of these."""
    units = ((86400, "days"), (3600, "h"))
    size, unit = next((pair for pair in units if seconds >= 2 * pair[0]), (60, "min"))
    return f"{max(1, round(seconds / size))} {unit}"


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


def _no_bar(_label: str) -> AbstractContextManager[None]:
    return nullcontext()
