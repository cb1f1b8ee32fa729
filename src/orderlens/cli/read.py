"""``orderlens analyze``, ``figures``, ``report`` and ``view``: read stored runs. No model is needed.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import contextlib
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from orderlens.cli.command import Output, takes
from orderlens.cli.terminal import keeping, print_json, print_line, print_text
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError
from orderlens.runs.options import (
    FILE_OUT,
    FOLDER_OUT,
    Bootstrap,
    Device,
    GraderName,
    OneTemperature,
    evaluator_option,
)
from orderlens.runs.request import NEEDED, Opt, Request, entries

if TYPE_CHECKING:
    from orderlens.analysis.study import Options, Study
    from orderlens.analysis.table import Table
    from orderlens.show.viewer.serve import Place
    from orderlens.store.reader import Run

Runs = Annotated[
    Sequence[str],
    Opt(
        "Run folders, folders of runs, or the folder of a replication.",
        place=True,
        metavar="RUN…",
        given=NEEDED,
        repeat=True,
    ),
]
Formats = Annotated[Sequence[str], Opt("Picture formats, out of svg, png and pdf.", name="format")]
PICTURES = ("svg", "png", "pdf")


def opened(runs: Sequence[str]) -> "Run":
    """Open runs; name each incomplete one in a line on standard error."""
    from orderlens.store.reader import open_run

    return name_incomplete(open_run(list(runs)))


def opened_study(runs: Sequence[str], options: "Options | None" = None) -> "Study":
    """Open runs as a study; name each incomplete one in a line on standard error."""
    from orderlens.analysis.study import Study

    study = Study.open(list(runs), options)
    name_incomplete(study.run)
    return study


def name_incomplete(run: "Run") -> "Run":
    """Print a line on standard error for each incomplete run."""
    for note in run.incomplete:
        print_line(note)
    return run


@dataclass(frozen=True, kw_only=True)
class Writes(Request):
    """The option of commands that write files."""

    overwrite: Annotated[bool, Opt("Replace existing files.")] = False


@dataclass(frozen=True, kw_only=True)
class Analyze(Writes, Output):
    """Print the paper's tables and our control tables for runs.

    A cell without a value says why. Intervals come from a bootstrap over prompts.
    """

    runs: Annotated[
        Sequence[str], Opt("Run folders; several are read as one.", place=True, metavar="RUN…", repeat=True)
    ] = ()
    table: Annotated[
        Sequence[str],
        Opt(
            "Tables to print, separated by commas; repeatable. 'null' simulates a study in which Var "
            "has no effect.",
            shown="all that the runs support",
            repeat=True,
        ),
    ] = ()
    form: Annotated[
        Literal["text", "csv", "latex", "markdown", "json"], Opt("Format of the tables.", name="format")
    ] = "text"
    paper: Annotated[bool, Opt("Add the paper's value and the difference to each cell.")] = False
    evaluator: Annotated[str | None, evaluator_option(" or default (GPT-2 Large)")] = None
    device: Device = None
    temperature: OneTemperature = None
    grader: GraderName = None
    content: Annotated[
        Literal["eos", "special"],
        Opt("Tokens that content statistics leave out: eos alone, as in the paper, or special ones too."),
    ] = "eos"
    bootstrap: Bootstrap = 1000
    level: Annotated[float, Opt("Coverage of the intervals, between 0 and 1.")] = 0.95
    out: Annotated[Path | None, replace(FILE_OUT, shown="print the tables")] = None
    width: Annotated[
        int | None,
        Opt(
            "Maximum width of text tables in characters; 0 for no maximum.",
            shown="the terminal's, else 100",
            least=0,
        ),
    ] = None
    list_tables: Annotated[bool, Opt("List the tables and exit.", name="list")] = False
    explain: Annotated[
        bool, Opt("Explain the columns of the tables (all terms without --table) and exit; needs no run.")
    ] = False


@takes(Analyze)
def analyze(request: Analyze) -> None:
    """Build and print tables."""
    from orderlens.analysis.study import Options
    from orderlens.analysis.table import table_recipes
    from orderlens.cli.console import UNBOUND_WIDTH, table_width
    from orderlens.metrics.estimate import Resampling
    from orderlens.metrics.external import DEFAULT_EVALUATOR

    if request.list_tables:
        _print_list({name: recipe.summary for name, recipe in table_recipes().items()}, request.json)
        return
    names = [name for item in request.table for name in entries(item)]
    if request.explain:
        _print_entries(names, request.json)
        return
    if request.out is not None:
        refuse_place(request.out, overwrite=request.overwrite)
    options = Options(
        resampling=Resampling(request.bootstrap, level=request.level),
        temperature=request.temperature,
        evaluator=DEFAULT_EVALUATOR if request.evaluator == "default" else request.evaluator,
        device=request.device,
        grader=request.grader,
        content=request.content,
    )
    tables = _build(list(request.runs), names, options)
    width = request.width
    if width is None:
        width = UNBOUND_WIDTH if request.out is not None else table_width()
    _show(request, tables, width or None, left_out(list(request.runs)))


def _build(runs: list[str], names: list[str], options: "Options") -> "list[Table]":
    from orderlens.analysis.tables_controls import null_table, simulate_study

    if not runs:
        if names == ["null"]:
            return [null_table(simulate_study(seed=options.resampling.seed), options, simulated=True)]
        raise UserInputError("no run given; name run folders (only --table null works without)")
    return opened_study(runs, options).tables(names or None)


def left_out(runs: list[str]) -> dict[str, str]:
    """Return a sentence per run whose data left out rows."""
    from orderlens.store.reader import open_run
    from orderlens.texts.loading import describe

    records = {run: open_run(run).spec.get("data") or {} for run in runs}
    return {
        run: describe(data)[0] for run, data in records.items() if any((data.get("left_out") or {}).values())
    }


def _show(request: Analyze, tables: "list[Table]", width: int | None, notes: dict[str, str]) -> None:
    from orderlens.analysis.rendering import as_json, render
    from orderlens.analysis.table import with_paper_values
    from orderlens.cli.console import stderr

    form = "json" if request.json else request.form
    ready = [with_paper_values(table) for table in tables] if request.paper else tables
    if request.out is not None:
        write_text(request.out, render(ready, form, width))
    elif form == "json":
        print_json({"tables": [as_json(table) for table in ready], "data": notes})
        return
    else:
        print_text(render(ready, form, width))
    for run, note in notes.items():
        stderr.print(f"note: {run}: {note}")


def _print_entries(tables: list[str], as_json: bool) -> None:
    from dataclasses import asdict

    from orderlens.analysis import glossary
    from orderlens.cli.console import table_width

    found = glossary.of_tables(tables) if tables else glossary.entries()
    if as_json:
        print_json([asdict(entry) for entry in found])
    else:
        print_text(glossary.as_text(found, table_width() or 100).rstrip("\n"))


def _print_list(summaries: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    print_text("\n".join(f"{name.ljust(width)}  {text}" for name, text in summaries.items()))


@dataclass(frozen=True, kw_only=True)
class Figures(Writes, Output):
    """Draw the paper's figures from runs, each with a JSON file of its data."""

    runs: Runs
    out: Annotated[Path, FOLDER_OUT] = Path("figures")
    figure: Annotated[Sequence[str], Opt("Figures to draw, separated by commas.", shown="all")] = ()
    formats: Formats = PICTURES


@takes(Figures)
def figures(request: Figures) -> None:
    """Draw the figures and list their files."""
    from orderlens.errors import UndefinedFigureError
    from orderlens.figures.catalogue import FIGURES, draw_figures

    out, names = request.out, request.figure or FIGURES.names()
    for name in request.figure:
        FIGURES.get(name)
    others = set(FIGURES.names()) - set(names)
    taken = (path for path in sorted(out.glob("*.*")) if _shows(path.stem, names, others))
    refuse_place(out, folder=True, overwrite=request.overwrite, files=taken)
    with keeping(lambda: f"the finished figures are in {out}; the same command draws all of them"):
        drawn = draw_figures(opened_study(request.runs), out, request.figure or None, request.formats)
    if request.json:
        print_json([{"name": i.name, "files": [str(path) for path in i.paths], "why": i.why} for i in drawn])
    else:
        for item in drawn:
            print_text(f"{item.name}: {item.why or ', '.join(str(path) for path in item.paths)}")
    if not any(item.paths for item in drawn):
        raise UndefinedFigureError("none of the figures can be drawn from these runs")


def _shows(stem: str, names: Sequence[str], others: Set[str]) -> bool:
    """Whether a file belongs to one of the figures; with several models its name ends in the model."""
    return stem in names or (stem not in others and any(stem.startswith(f"{name}-") for name in names))


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Writes, Output):
    """Write a self-contained HTML report about runs: findings, samples, figures and tables."""

    runs: Runs
    out: Annotated[Path, FILE_OUT] = Path("report.html")
    samples: Annotated[int, Opt("Number of samples in the report; 0 leaves all texts out.", least=0)] = 12
    title: Annotated[str | None, Opt("Title of the page.")] = None
    bootstrap: Bootstrap = 1000


@takes(ReportCommand)
def report(request: ReportCommand) -> None:
    """Write the file."""
    from orderlens.analysis import Options
    from orderlens.metrics.estimate import Resampling
    from orderlens.show.report.build import report as write

    refuse_place(request.out, overwrite=request.overwrite)
    study = opened_study(request.runs, Options(resampling=Resampling(request.bootstrap)))
    path = write(study, request.out, samples=request.samples, title=request.title)
    if request.json:
        print_json({"file": str(path), "bytes": path.stat().st_size, "runs": study.run.names})
    else:
        print_text(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB; open it in a browser)")


@dataclass(frozen=True, kw_only=True)
class View(Output):
    """Open runs in the browser: filter samples, replay their decoding, compare two orders.

    The viewer only reads. It answers this machine only, at the printed address; Ctrl-C stops it.
    """

    runs: Runs
    port: Annotated[int, Opt("Port on 127.0.0.1; 0 for any free port.", least=0, most=65535)] = 0
    browser: Annotated[bool, Opt("Open the page in the browser.", negative=True)] = True


@takes(View)
def view(request: View) -> None:
    """Serve until Ctrl-C."""
    from orderlens.show.viewer.serve import serve

    run = opened(request.runs)

    def ready(place: "Place") -> None:
        if request.json:
            print_json({"address": place.address, "port": place.port, "runs": run.names})
        else:
            print_text(f"viewer: {place.address}\n(reachable from this machine only; Ctrl-C stops it)")
        sys.stdout.flush()  # a script may wait for the address

    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        serve(run, port=request.port, browser=request.browser, ready=ready)
