"""``orderlens replicate`` and ``downstream``: complete studies (``frontier`` has its own file).

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Runs, Writes, opened_study
from orderlens.cli.terminal import keeping, kept_in, print_json, print_text
from orderlens.common.files import refuse_place
from orderlens.errors import UserInputError
from orderlens.runs.options import (
    FOLDER_OUT,
    Bootstrap,
    Computing,
    GraderName,
    OneTemperature,
    local_place,
)
from orderlens.runs.request import Opt
from orderlens.studies.replicate import Replicate

if TYPE_CHECKING:
    from orderlens.cli.console import Bar, Lines
    from orderlens.studies.plan import Plan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Decoded

LONG_TABLES = ("theory", "circulation", "agreement")
"""Long tables that are written to files but not printed."""


@dataclass(frozen=True, kw_only=True)
class ReplicateCommand(Replicate, Writes, Output):
    """``replicate`` with its stages."""

    stages: Annotated[
        Sequence[str] | None,
        Opt(
            "Stages to run, out of questions, score, measure, generate, sweep, external and results; "
            "of study downstream: evaluate and results. "
            "Several processes may share one folder.",
            shown="all",
        ),
    ] = None
    decode_only: Annotated[
        bool, Opt("Stop after the last forward pass; --stages results computes the rest.")
    ] = False
    docs: Annotated[
        Path | None,
        Opt(
            "Also write the results as a Markdown file, with its pictures in figures/NAME/.",
            metavar="FILE",
            read=local_place,
        ),
    ] = None

    def chosen_stages(self) -> list[str]:
        """Return the requested stages."""
        plan = self.plan()
        named = plan.in_order(self.stages)
        chosen = [name for name in named if not (self.decode_only and name == "results")]
        if self.docs and "results" not in chosen:
            raise UserInputError(
                "--docs needs the results: leave out --decode-only, or name results in --stages"
            )
        if self.docs and not plan.has_texts:
            raise UserInputError("--docs is for study c4; of study downstream, results.md is the page")
        if not chosen:
            allowed = ", ".join(plan.stages)
            raise UserInputError(
                f"--stages '{','.join(self.stages or ())}' selects no stage; choose out of {allowed}"
            )
        return chosen


@takes(ReplicateCommand, Replicate)
def replicate(request: ReplicateCommand) -> None:
    """Run the stages and print what came out."""
    out, stages = Path(os.fspath(request.out)), request.chosen_stages()
    refuse_place(out, folder=True)
    if request.docs is not None:
        refuse_place(request.docs, overwrite=request.overwrite)
    run_plan(
        request.plan(),
        out,
        stages,
        request.computing(),
        as_json=request.json,
        bars=opened_bars("--limit", quiet=request.json),
        print_results=_show_replication,
        docs=request.docs,
    )


def _share(plan: "Plan", stages: Sequence[str]) -> Sequence[str]:
    """Return the stages of this rank; stages without a forward pass belong to the leading rank."""
    from orderlens.common.machine import this_rank

    rank = this_rank()
    return stages if rank is None or rank.leads else [name for name in stages if name in plan.model_stages()]


OpenBar: TypeAlias = "Callable[[str], AbstractContextManager[Bar | Lines]]"
"""Opens the progress bar of a part by its label."""


def opened_bars(shorter: str, *, quiet: bool) -> OpenBar:
    """Return the function that opens a progress bar per part; ``shorter`` names options that save time."""
    from orderlens.cli.console import progress_bar

    return lambda label: progress_bar(f"{label:<30}", None, quiet=quiet, shorter=shorter)


def run_plan(
    plan: "Plan",
    out: Path,
    stages: Sequence[str],
    computing: Computing,
    *,
    as_json: bool,
    bars: OpenBar,
    print_results: "Callable[[Results], None]",
    docs: Path | None = None,
) -> None:
    """Run stages of a plan with their progress and print the results."""
    from orderlens.studies.replicate import results_of
    from orderlens.studies.runner import decode

    told = None if as_json or plan.has_texts else print_text
    stages = _share(plan, stages)
    decoding = [name for name in stages if name != "results"]
    decoded = None
    if decoding:
        with keeping(lambda: kept_in(out)):
            decoded = decode(plan, out, decoding, computing=computing, show=bars, on_estimate=told)
    if "results" not in stages:
        assert decoded is not None
        _show_decoded(decoded, out, as_json=as_json)
        return
    later = f"orderlens {plan.command} --out {out} --stages results"
    with keeping(lambda: f"the traces are kept; make the results with: {later}"):
        made = results_of(plan, out, decoded.why_no_scores if decoded else None)
        if docs is not None:
            from orderlens.studies.results import write_docs

            write_docs(made, docs)
    if as_json:
        seconds = {**(decoded.seconds if decoded else {}), **made.seconds}
        print_json(made.record() | {"page": str(made.page), "seconds": seconds})
    else:
        print_results(made)


def _show_decoded(decoded: "Decoded[Plan]", out: Path, *, as_json: bool) -> None:
    """Print what was decoded and the next command."""
    from orderlens.studies.runner import incomplete_stages

    if as_json:
        plan, notes = decoded.plan.record(), list(decoded.notes)
        print_json({"folder": str(out), "plan": plan, "notes": notes, "seconds": decoded.seconds})
        return
    for name, seconds in decoded.seconds.items():
        print_text(f"{name}: {seconds:.0f} s")
    for note in decoded.notes:
        print_text(f"note: {note}")
    missing = incomplete_stages(decoded.plan, out)
    if missing:
        print_text(f"traces are in {out / 'runs'}; stages still to run: {', '.join(missing)}")
        return
    later = f"orderlens {decoded.plan.command} --out {out} --stages results"
    print_text(f"traces are in {out / 'runs'}; the results: {later}")


def _show_replication(results: "Results") -> None:
    """Print tables, findings and where everything is."""
    from orderlens.analysis import render
    from orderlens.cli.console import table_width

    print_text(f"\n{results.facts}\n")
    shown = [table for table in results.tables if table.name not in LONG_TABLES]
    print_text(render(shown, "text", table_width()))
    print_text(results.reading.text())
    for item in results.figures:
        if item.why is not None:
            print_text(f"figure {item.name} was not drawn: {item.why}")
    for note in results.notes:
        print_text(f"note: {note}")
    names = ", ".join(table.name for table in results.tables)
    print_text(f"tables:  {results.folder / 'tables'} ({names})")
    print_text(f"figures: {results.folder / 'figures'}")
    print_text(f"report:  {results.page} (open it in a browser; samples: orderlens view {results.folder})")


@dataclass(frozen=True, kw_only=True)
class DownstreamCommand(Writes, Output):
    """Test in graded runs whether Var predicts correct answers.

    --out writes index.html, results.md, summary.txt, summary.json, tables/ and figures/, without the texts.
    """

    runs: Runs
    out: Annotated[Path | None, replace(FOLDER_OUT, shown="print the findings only")] = None
    grader: GraderName = None
    temperature: OneTemperature = None
    bootstrap: Bootstrap = 1000


@takes(DownstreamCommand)
def downstream(request: DownstreamCommand) -> None:
    """Read graded runs."""
    from orderlens.analysis import Options
    from orderlens.metrics.estimate import Resampling
    from orderlens.studies.downstream import graded_study, read_downstream, write_downstream

    resampling = Resampling(request.bootstrap)
    options = Options(resampling=resampling, temperature=request.temperature, grader=request.grader)
    if request.out is not None:
        refuse_place(request.out, folder=True, overwrite=request.overwrite)
    study = graded_study(opened_study(request.runs, options))
    reading = read_downstream(study) if request.out is None else write_downstream(study, request.out).reading
    if request.json:
        print_json(reading.record() | {"out": None if request.out is None else str(request.out)})
        return
    print_text(reading.text())
    if request.out is not None:
        print_text(f"report: {request.out / 'index.html'}")
