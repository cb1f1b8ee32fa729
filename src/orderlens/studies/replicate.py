"""``orderlens.replicate``: the paper's experiments from plain arguments to results.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from orderlens.runs.options import (
    DATA,
    MAX_NEW_TOKENS,
    RESUMED_OUT,
    SOURCES,
    TEMPERATURES,
    Computing,
    Machine,
    ModelName,
    PathLike,
    Seed,
    Split,
    evaluator_option,
    limit_option,
)
from orderlens.runs.request import NEEDED, BadValueError, Opt, verb

if TYPE_CHECKING:
    from orderlens.models.protocol import Model
    from orderlens.studies.plan import Plan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Show


@dataclass(frozen=True)
class Replicate(Machine):
    """Run the paper's experiments and write their results; the same command resumes them."""

    model: ModelName = "tiny"
    data: Annotated[
        "PathLike | None",
        replace(DATA, shown="passages for preset demo, else c4"),
    ] = None
    _: KW_ONLY
    out: Annotated["PathLike", replace(RESUMED_OUT, given=NEEDED)]
    study: Annotated[
        Literal["c4", "downstream"], Opt("The C4 experiments, or four benchmarks under four orders.")
    ] = "c4"
    preset: Annotated[str, Opt("Size of the study: demo, quick (100 texts) or full (1,000 texts).")] = "quick"
    limit: Annotated[int | None, limit_option("texts, or items per task")] = None
    max_new_tokens: Annotated[
        int | None, replace(MAX_NEW_TOKENS, help="Study downstream: tokens per response.", shown="16384")
    ] = None
    sources: Annotated[
        Sequence[str] | None,
        replace(SOURCES, help="Study downstream: read a task from a local file instead of the hub."),
    ] = None
    temperatures: Annotated[Sequence[float] | None, replace(TEMPERATURES, shown="the preset's")] = None
    evaluator: Annotated[str, evaluator_option(" or auto (GPT-2 Large for hub models)")] = "auto"
    split: Split = "none"
    seed: Seed = 0
    block_size: Annotated[int | None, "tokens per block; 32 by default, as in the paper."] = None
    show: Annotated["Show | None", "opens a progress bar per stage."] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        of_texts, of_tasks = ("data", "temperatures", "evaluator", "split"), ("max_new_tokens", "sources")
        for name in of_texts if self.study == "downstream" else of_tasks:
            given = getattr(self, name)
            if given != getattr(Replicate, name):
                why = f"is not an option of study {self.study}; leave it out or choose the other study"
                shown = given if isinstance(given, str | int) else ",".join(map(str, given))
                raise BadValueError(name, shown, why)

    def plan(self) -> "Plan":
        """Return the plan of the folder."""
        from orderlens.studies.downstream_plan import make_downstream_plan
        from orderlens.studies.replicate_plan import make_plan

        if self.study == "downstream":
            return make_downstream_plan(
                self.preset,
                self._model_name(),
                self.sources or (),
                n_items=self.limit,
                max_new_tokens=self.max_new_tokens,
                seed=self.seed,
                block_size=self.block_size,
                batch_size=self.batch_size,
            )
        warm = None if self.temperatures is None else tuple(value for value in self.temperatures if value > 0)
        return make_plan(
            self.preset,
            self._model_name(),
            None if self.data is None else os.fspath(self.data),
            n_texts=self.limit,
            temperatures=warm,
            evaluator=self.evaluator,
            split=self.split,
            seed=self.seed,
            block_size=self.block_size,
            batch_size=self.batch_size,
        )

    def _model_name(self) -> str:
        named = isinstance(self.model, str | os.PathLike)
        return os.fspath(self.model) if named else self.model.name  # type: ignore[arg-type, union-attr]

    def computing(self) -> Computing:
        """Return how the stages compute."""
        return Computing(
            device=self.device, dtype=self.dtype, weights=self.weights, engine=self.chosen_engine
        )


def run_replicate(request: Replicate) -> "Results":
    """Plan, tables, findings, figures and notes."""
    loaded = None if isinstance(request.model, str | os.PathLike) else request.model
    return run_plan(
        request.plan(),
        os.fspath(request.out),
        model=loaded,
        computing=request.computing(),
        show=request.show,
    )


def run_plan(
    plan: "Plan",
    out: str | Path,
    stages: Iterable[str] | None = None,
    *,
    model: "Model | None" = None,
    computing: Computing | None = None,
    show: "Show | None" = None,
) -> "Results":
    """Run the stages that are not complete yet, then write the results; see ``runner.decode``."""
    from orderlens.studies.runner import decode

    decoded = decode(plan, out, stages, model=model, computing=computing, show=show)
    return results_of(plan, out, decoded.why_no_scores)


def results_of(plan: "Plan", out: str | Path, why_no_scores: str | None = None) -> "Results":
    """Write the results of a study's runs."""
    from orderlens.studies import downstream, results

    if plan.has_texts:
        return results.replicate_results(out, why_no_scores)
    return downstream.downstream_results(out)


replicate = verb(Replicate, run_replicate)
