"""``orderlens.replicate``: the paper's C4 experiments from plain arguments to results.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderlens.runs.options import Computing, Limit, Machine, ModelName, PathLike, Seed, Split, local_place
from orderlens.runs.request import NEEDED, Opt, verb

if TYPE_CHECKING:
    from orderlens.models.protocol import Model
    from orderlens.studies.replicate_plan import ReplicatePlan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Show


@dataclass(frozen=True)
class Replicate(Machine):
    """Run the paper's C4 experiments; the same command resumes what was interrupted."""

    model: ModelName = "tiny"
    data: Annotated[
        "PathLike | None",
        Opt("File or built-in name.", "-d", shown="passages for demo, else c4", metavar="TEXT"),
    ] = None
    _: KW_ONLY
    out: Annotated[
        "PathLike",
        Opt(
            "Folder; unfinished work there is resumed.",
            "-o",
            given=NEEDED,
            read=local_place,
            metavar="FOLDER",
        ),
    ]
    preset: Annotated[str, Opt("demo, quick (100 texts) or full (1,000).")] = "quick"
    limit: Limit = None
    temperatures: Annotated[
        Sequence[float] | None, Opt("Temperatures of the sweep, separated by commas.", shown="the preset's")
    ] = None
    evaluator: Annotated[
        str,
        Opt("External perplexity: auto, tiny-ar, smol-ar, or hf:openai-community/gpt2-large (the paper's)."),
    ] = "auto"
    split: Split = "none"
    seed: Seed = 0
    block_size: Annotated[int | None, "tokens per block; 32 by default, as in the paper."] = None
    show: Annotated["Show | None", "opens a progress bar per stage."] = None

    def plan(self) -> "ReplicatePlan":
        """Return the plan of the folder."""
        from orderlens.studies.replicate_plan import make_plan

        warm = None if self.temperatures is None else tuple(value for value in self.temperatures if value > 0)
        named = isinstance(self.model, str | os.PathLike)
        return make_plan(
            self.preset,
            os.fspath(self.model) if named else self.model.name,  # type: ignore[arg-type, union-attr]
            None if self.data is None else os.fspath(self.data),
            n_texts=self.limit,
            temperatures=warm,
            evaluator=self.evaluator,
            split=self.split,
            seed=self.seed,
            block_size=self.block_size,
            batch_size=self.batch_size,
        )

    def computing(self) -> Computing:
        """Return how the stages compute."""
        return Computing(device=self.device, dtype=self.dtype, engine=self.chosen_engine)


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
    plan: "ReplicatePlan",
    out: str | Path,
    stages: Iterable[str] | None = None,
    *,
    model: "Model | None" = None,
    computing: Computing | None = None,
    show: "Show | None" = None,
) -> "Results":
    """Run the stages that are not complete yet, then write the results; see ``runner.decode``."""
    from orderlens.studies.results import replicate_results
    from orderlens.studies.runner import decode

    decoded = decode(plan, out, stages, model=model, computing=computing, show=show)
    return replicate_results(out, decoded.why_no_scores)


replicate = verb(Replicate, run_replicate)
