"""The parts of a frontier with forward passes, each into a run folder of its own; what is there is kept.

Needs no more than decoding does, so that a machine without the analysis can run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from orderlens.errors import RunError
from orderlens.models.abilities import SuggestsBatch, device_type
from orderlens.models.protocol import Model
from orderlens.runs.job import generate_job, score_job
from orderlens.runs.options import Computing, ProgressSink
from orderlens.runs.run import run_job
from orderlens.store.reader import open_run
from orderlens.studies.frontier.plan import DECODING, RUNS, Plan, check_parts, keep_plan
from orderlens.studies.replicate.external import external_folder, find_evaluator, score_texts
from orderlens.studies.replicate.pace import TRUSTED_S, Show
from orderlens.studies.replicate.plan import device_batch
from orderlens.tasks.evaluation.job import evaluate_job
from orderlens.texts.datafiles import LoadedData, SplitRule, load_data


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the decoding parts did: seconds by part, and what a reader should know."""

    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def decode(
    plan: Plan,
    out: str | Path,
    parts: Iterable[str] = DECODING,
    *,
    model: Model | None = None,
    computing: Computing | None = None,
    show: Show | None = None,
    tell: Callable[[str], None] | None = None,
) -> Decoded:
    """Compute what the folder does not hold yet of the given parts.

    Args:
        plan: what to compute; a folder that was started with another plan is refused.
        out: the folder.
        parts: out of ``DECODING``.
        model: a loaded model instead of ``plan.model``.
        computing: device, dtype, samples per work unit and engine.
        show: opens a progress bar per part.
        tell: is told after the first part how long the others will take.
    """
    wanted, folder = [name for name in check_parts(parts) if name in DECODING], Path(out)
    keep_plan(folder, plan)
    bench = _Bench(plan, folder, computing or Computing(), show or (lambda _: nullcontext()), model)
    seconds: dict[str, float] = {}
    notes = plan.notes()
    for name in wanted:
        start = time.perf_counter()
        notes += bench.run(name)
        seconds[name] = time.perf_counter() - start
        if tell is not None and name == wanted[0] and (forecast := _forecast(plan, wanted, seconds[name])):
            tell(forecast)
    return Decoded(seconds, tuple(dict.fromkeys(notes)))


def _forecast(plan: Plan, parts: Sequence[str], seconds: float) -> str:
    """Say how long the parts after the first will take at its speed; nothing where that tells nothing."""
    first, *rest = (plan.reveals(name) for name in parts)
    if seconds < TRUSTED_S or not first or not sum(rest):
        return ""
    minutes = max(1, round(sum(rest) / first * seconds / 60))
    return f"{parts[0]}: {seconds:.0f} s; {', '.join(parts[1:])}: up to about {minutes} min more"


class _Bench:
    """What the parts share: the model and the texts, loaded when the first part needs them."""

    def __init__(
        self, plan: Plan, folder: Path, computing: Computing, show: Show, model: Model | None
    ) -> None:
        self.plan, self.folder, self.computing, self.show = plan, folder, computing, show
        self._model = model
        self._data: LoadedData | None = None

    def run(self, part: str) -> list[str]:
        """Compute one part; return notes."""
        parts = {"likelihood": self._likelihood, "text": self._text, "tasks": self._tasks}
        return (parts | {"external": self._external})[part]()

    @property
    def model(self) -> Model:
        """The model, loaded once."""
        if self._model is None:
            self._model = self.computing.load(self.plan.model)
        return self._model

    @property
    def data(self) -> LoadedData:
        """The texts, the same ones for every part."""
        if self._data is None:
            rule = SplitRule(self.plan.prefix_tokens, self.plan.target_tokens)
            self._data = load_data(
                self.plan.data, self.model.tokenizer, rule, limit=self.plan.n_texts, choose_by_hash=True
            )
        return self._data

    def options(self, part: str, progress: ProgressSink | None) -> Computing:
        """How a part lays out and cuts its work: a GPU is filled, a processor interrupted cheaply."""
        size = self.computing.batch_size
        if size is None and device_type(self.model) == "cuda" and not isinstance(self.model, SuggestsBatch):
            size = device_batch("cuda")
        return replace(
            self.computing,
            out=self.place(part),
            block_size=self.plan.block_size or None,
            batch_size=size,
            data_record=None if part == "tasks" else self.data.record(by_name=True),
            progress=progress,
        )

    def place(self, part: str) -> Path:
        """Return the run folder of a part."""
        return self.folder / "runs" / RUNS[part]

    def _likelihood(self) -> list[str]:
        policies = self.plan.scorable()
        if not policies:
            return ["no policy can score a fixed text: there is no likelihood"]
        with self.show("scoring fixed texts") as bar:
            options = self.options("likelihood", bar)
            sets = self.plan.couplings
            run_job(score_job(self.model, self.data.samples, policies, options, couplings=sets), options)
        return self._fewer()

    def _text(self) -> list[str]:
        with self.show("generating texts") as bar:
            options = self.options("text", bar)
            job = generate_job(
                self.model,
                self.data.samples,
                self._generating(),
                options,
                max_new_tokens=self.plan.target_tokens,
                temperatures=(self.plan.temperature,),
                seed=self.plan.seed,
                stop_at_eos=True,
            )
            run_job(job, options)
        return self._fewer()

    def _tasks(self) -> list[str]:
        if not self.plan.tasks:
            return ["no tasks were asked for (--tasks)"]
        with self.show("answering tasks") as bar:
            options = self.options("tasks", bar)
            job = evaluate_job(
                self.model,
                list(self.plan.tasks),
                self._generating(),
                options,
                limit=self.plan.n_items,
                max_new_tokens=None,
                temperature=self.plan.temperature,
                seed=self.plan.seed,
                sources=None,
                graders=None,
                chat=True,
            )
            run_job(job, options)
        return []

    def _external(self) -> list[str]:
        """Let the evaluator score the generated texts; where it cannot be loaded, say so and go on."""
        if not (self.place("text") / "spec.json").is_file():
            raise RunError("part external needs the generated texts: run --parts text first")
        evaluator, why = find_evaluator(self.plan.evaluator, self.computing.device)
        if evaluator is None:
            return [f"no external perplexity with {self.plan.evaluator}: {why}"]
        run = open_run(self.place("text"))
        with self.show("scoring the texts from outside") as bar:
            score_texts(run, evaluator, external_folder(self.folder / "runs", self.plan.evaluator), bar)
        return []

    def _generating(self) -> list[str]:
        policies = self.plan.deployable()
        if not policies:
            raise RunError("no policy can generate: all of them need the target; leave out text and tasks")
        return [policy.spec for policy in policies]

    def _fewer(self) -> list[str]:
        found = len(self.data.samples)
        if found >= self.plan.n_texts:
            return []
        return [f"{found} of {self.plan.n_texts} wanted texts: the data hold no more"]
