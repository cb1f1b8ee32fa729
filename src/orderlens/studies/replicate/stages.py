"""The stages with forward passes, each into a run folder of its own, and the order they go in.

A stage computes only what its folder does not hold yet. Nothing here makes tables or figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orderlens.errors import RunError
from orderlens.models.protocol import Model
from orderlens.rules import parse_policies
from orderlens.runs.job import Job, generate_job, score_job
from orderlens.runs.options import Computing, ProgressSink
from orderlens.runs.run import run_job
from orderlens.runs.spec import RunSpec, describe_data, describe_model, samples_digest
from orderlens.store.reader import open_run
from orderlens.store.records import SPEC
from orderlens.studies.replicate.external import external_folder, find_evaluator, score_texts
from orderlens.studies.replicate.pace import Show
from orderlens.studies.replicate.plan import Plan
from orderlens.tasks.bundled import frozen_items
from orderlens.texts.datafiles import LoadedData
from orderlens.texts.samples import Sample, encode_samples


@dataclass(frozen=True, slots=True)
class Bench:
    """What all stages share."""

    plan: Plan
    model: Model
    data: LoadedData
    runs: Path
    show: Show
    computing: Computing = field(default_factory=Computing)

    @property
    def samples(self) -> list[Sample]:
        """The chosen texts."""
        return self.data.samples

    def cut(self, n: int, tokens: int) -> Bench:
        """Return the same with only the first ``n`` texts and no more than ``tokens`` of their targets."""
        samples = self.samples[:n]
        if tokens < self.plan.target_tokens:  # targets given as text are what they are
            samples = [
                item if isinstance(item.target, str | None) else replace(item, target=item.target[:tokens])
                for item in samples
            ]
        plan = replace(self.plan, target_tokens=tokens)
        return replace(self, plan=plan, data=replace(self.data, samples=samples))

    def data_digest(self) -> str:
        """Return the digest of the encoded texts that every run's spec holds."""
        encoded = encode_samples(self.model, self.samples, need_target=True)
        return samples_digest(encoded)

    def options(self, stage: str, progress: ProgressSink | None) -> Computing:
        """How every stage lays out and cuts its work, and where it keeps it."""
        return replace(
            self.computing,
            out=self.runs / stage,
            block_size=self.plan.block_size,
            batch_size=self.plan.batch_size or None,
            data_record=self.data.record(by_name=True),
            progress=progress,
        )


def _score(bench: Bench) -> None:
    with bench.show("scoring fixed targets") as bar:
        options = bench.options("score", bar)
        run_job(score_job(bench.model, bench.samples, bench.plan.score_orders, options), options)


def _questions(bench: Bench) -> None:
    """Answer bundled word problems: a model that knows when to stop fills the rest of the canvas with EOS."""
    if bench.plan.questions:
        asked = frozen_items("questions")[: bench.plan.questions]
        samples = [Sample(item["id"], item["prompt"]) for item in asked]
        data = LoadedData(samples, "questions", len(samples))
        plan = replace(bench.plan, target_tokens=bench.plan.answer_tokens)
        asking = replace(bench, plan=plan, data=data)
        _decode(asking, "questions", "answering questions at T = 0", plan.generate_orders, (0.0,))
        if plan.together:
            _decode(asking, "together", "answering several tokens at once", plan.together, (0.0,))


def _generate(bench: Bench) -> None:
    _decode(bench, "generate", "generating at T = 0", bench.plan.generate_orders, (0.0,))


def _sweep(bench: Bench) -> None:
    if bench.plan.temperatures:
        _decode(
            bench,
            "sweep",
            "sweeping temperatures",
            bench.plan.sweep_orders,
            bench.plan.temperatures,
        )


def _decode(
    bench: Bench, name: str, label: str, orders: Sequence[str], temperatures: Sequence[float]
) -> None:
    with bench.show(label) as bar:
        options = bench.options(name, bar)
        job = generate_job(
            bench.model,
            bench.samples,
            orders,
            options,
            max_new_tokens=bench.plan.target_tokens,
            temperatures=temperatures,
            seed=bench.plan.seed,
            stop_at_eos=False,
        )
        run_job(job, options)


def _measure(bench: Bench) -> None:
    """Noise floor and circulation on a few texts; their traces are not stored twice."""
    plan = bench.plan
    orders = parse_policies(plan.measured_orders)
    samples = encode_samples(bench.model, bench.samples[: plan.measured_sequences], need_target=True)
    size = min(plan.batch_size or MEASURED_AT_ONCE, MEASURED_AT_ONCE)
    spec = RunSpec(
        "measure",
        describe_model(bench.model),
        bench.model.block_size,
        tuple(order.spec for order in orders),
        describe_data(samples, bench.data.record(by_name=True)),
        circulation_pairs=plan.circulation_pairs,
        batch_size=size,
    )
    with bench.show("measuring the noise floor") as bar:
        job = Job(spec, samples, bench.model, orders)
        run_job(job, bench.options("measure", bar))


MEASURED_AT_ONCE = 8
"""Texts per work unit when the noise floor is measured."""
MODEL_STAGES: dict[str, Callable[[Bench], None]] = {
    "questions": _questions,
    "score": _score,
    "measure": _measure,
    "generate": _generate,
    "sweep": _sweep,
}
"""Stages with forwards of the model under study; they may run in any order and side by side."""


GENERATING = ("generate", "sweep")
"""Stages whose texts the evaluator scores."""


def folders_of(stage: str, plan: Plan, runs: Path) -> list[Path]:
    """Return the run folders that a stage fills."""
    if stage == "external":
        return [external_folder(runs, plan.evaluator)]
    if (stage == "sweep" and not plan.temperatures) or (stage == "questions" and not plan.questions):
        return []
    more = [runs / "together"] if stage == "questions" and plan.together else []
    return [runs / stage, *more]


def is_done(stage: str, plan: Plan, runs: Path) -> bool:
    """Whether everything that a stage computes is committed."""
    return all(_is_complete(folder) for folder in folders_of(stage, plan, runs))


def _is_complete(folder: Path) -> bool:
    return (folder / SPEC).is_file() and open_run(folder).is_complete


def score_from_outside(plan: Plan, runs: Path, device: str | None, show: Show) -> str | None:
    """Score the generated texts with the plan's evaluator; where there is none return the reason.

    Raises:
        RunError: the texts are not all there yet.
    """
    missing = [stage for stage in GENERATING if not is_done(stage, plan, runs)]
    if missing:
        raise RunError(f"stage external needs all generated texts: run --stages {','.join(missing)} first")
    evaluator, why = find_evaluator(plan.evaluator, device)
    if evaluator is None:
        return why
    run = open_run([runs / name for name in GENERATING if (runs / name).is_dir()])
    with show("scoring the texts from outside") as bar:
        score_texts(run, evaluator, external_folder(runs, plan.evaluator), bar)
    return None
