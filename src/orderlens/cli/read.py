"""``orderlens analyze``, ``figures``, ``report`` and ``view``: what stored runs say. No model is needed.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import contextlib
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from orderlens.cli.command import Output, takes
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError
from orderlens.runs.options import Bootstrap, local_place
from orderlens.runs.request import NEEDED, Opt, Request, entries

if TYPE_CHECKING:
    from orderlens.analysis.study import Options
    from orderlens.analysis.table import Table
    from orderlens.show.viewer.serve import Place

Runs = Annotated[
    Sequence[str],
    Opt(
        "Run folders, folders of runs, or a replication.",
        place=True,
        metavar="RUN…",
        given=NEEDED,
        repeat=True,
    ),
]
FileOut = Opt("Write to this file, not to the screen.", "-o", metavar="FILE", read=local_place)
Formats = Annotated[Sequence[str], Opt("Out of svg, png, pdf.", name="format")]
PICTURES = ("svg", "png", "pdf")


@dataclass(frozen=True, kw_only=True)
class Writes(Request):
    """What a command that writes files takes."""

    overwrite: Annotated[bool, Opt("Replace files that exist.")] = False


@dataclass(frozen=True, kw_only=True)
class Analyze(Writes, Output):
    """Turn runs into the paper's tables plus the controls.

    Undefined cells say why they are undefined; intervals come from resampling prompts.
    """

    runs: Annotated[
        Sequence[str], Opt("Run folders (read as one).", place=True, metavar="RUN…", repeat=True)
    ] = ()
    table: Annotated[
        Sequence[str],
        Opt(
            "Table to show; repeat or separate by commas. 'null' shows the tables of a world where Var "
            "carries nothing.",
            shown="all the run can fill",
            repeat=True,
        ),
    ] = ()
    form: Annotated[
        Literal["text", "csv", "latex", "markdown", "json"], Opt("How tables are written.", name="format")
    ] = "text"
    paper: Annotated[bool, Opt("Put the paper's printed value and the difference beside ours.")] = False
    evaluator: Annotated[
        str | None,
        Opt("External perplexity by this model: tiny-ar, smol-ar, hf:ORG/NAME or default (GPT-2 Large)."),
    ] = None
    temperature: Annotated[
        float | None, Opt("Temperature of the one-temperature tables.", shown="the lowest")
    ] = None
    grader: Annotated[str | None, Opt("Use this grader's verdicts.", shown="one rule per task")] = None
    bootstrap: Bootstrap = 1000
    level: Annotated[float, Opt("Coverage of the intervals.")] = 0.95
    out: Annotated[Path | None, FileOut] = None
    width: Annotated[
        int | None,
        Opt(
            "Most columns of a table as text; 0 for any number.",
            shown="the terminal's; 100 elsewhere",
            least=0,
        ),
    ] = None
    list_tables: Annotated[bool, Opt("List the tables and exit.", name="list")] = False


@takes(Analyze)
def analyze(asked: Analyze) -> None:
    """Build and print tables."""
    from orderlens.analysis.study import Options
    from orderlens.analysis.table import table_recipes
    from orderlens.cli.console import UNBOUND_WIDTH, table_width
    from orderlens.metrics.estimate import Resampling
    from orderlens.metrics.external import DEFAULT_EVALUATOR

    if asked.list_tables:
        _print_list({name: recipe.summary for name, recipe in table_recipes().items()}, asked.json)
        return
    if asked.out is not None:
        refuse_place(asked.out, overwrite=asked.overwrite)
    options = Options(
        resampling=Resampling(asked.bootstrap, level=asked.level),
        temperature=asked.temperature,
        evaluator=DEFAULT_EVALUATOR if asked.evaluator == "default" else asked.evaluator,
        grader=asked.grader,
    )
    tables = _build(list(asked.runs), [name for item in asked.table for name in entries(item)], options)
    width = asked.width
    if width is None:
        width = UNBOUND_WIDTH if asked.out is not None else table_width()
    _show(asked, tables, width or None, left_out(list(asked.runs)))


def _build(runs: list[str], names: list[str], options: "Options") -> "list[Table]":
    from orderlens.analysis.study import Study
    from orderlens.analysis.tables_controls import null_table, simulate_study

    if not runs:
        if names == ["null"]:
            return [null_table(simulate_study(seed=options.resampling.seed), options, made_up=True)]
        raise UserInputError("no run given; write orderlens analyze RUN… (only --table null works without)")
    return Study.open(runs, options).tables(names or None)


def left_out(runs: list[str]) -> dict[str, str]:
    """Say, by run, what its data left out; runs that used every row are not named."""
    from orderlens.store.reader import open_run
    from orderlens.texts.loading import describe

    records = {run: open_run(run).spec.get("data") or {} for run in runs}
    return {
        run: describe(data)[0] for run, data in records.items() if any((data.get("left_out") or {}).values())
    }


def _show(asked: Analyze, tables: "list[Table]", width: int | None, notes: dict[str, str]) -> None:
    from orderlens.analysis.rendering import as_json, render
    from orderlens.analysis.table import beside_paper
    from orderlens.cli.console import print_json, print_text, stderr

    form = "json" if asked.json else asked.form
    ready = [beside_paper(table) for table in tables] if asked.paper else tables
    if asked.out is not None:
        write_text(asked.out, render(ready, form, width))
    elif form == "json":
        print_json({"tables": [as_json(table) for table in ready], "data": notes})
        return
    else:
        print_text(render(ready, form, width))
    for run, note in notes.items():
        stderr.print(f"note: {run}: {note}")


def _print_list(summaries: dict[str, str], as_json: bool) -> None:
    from orderlens.cli.console import print_json, print_text

    if as_json:
        print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    print_text("\n".join(f"{name.ljust(width)}  {text}" for name, text in summaries.items()))


@dataclass(frozen=True, kw_only=True)
class Figures(Writes, Output):
    """Draw figures from runs, each with its data as JSON beside it; no model is needed."""

    runs: Runs
    out: Annotated[Path, Opt("Where the files go.", "-o", metavar="FOLDER", read=local_place)] = Path(
        "figures"
    )
    figure: Annotated[Sequence[str], Opt("Names, separated by commas.", shown="all")] = ()
    formats: Formats = PICTURES


@takes(Figures)
def figures(asked: Figures) -> None:
    """Draw and list what was drawn."""
    from orderlens.analysis import Study
    from orderlens.cli.console import print_json, print_text
    from orderlens.cli.terminal import keeping
    from orderlens.errors import UndefinedFigureError
    from orderlens.figures.catalogue import FIGURES, draw_figures

    out, names = asked.out, asked.figure or FIGURES.names()
    for name in asked.figure:
        FIGURES.get(name)
    others = set(FIGURES.names()) - set(names)
    taken = (path for path in sorted(out.glob("*.*")) if _shows(path.stem, names, others))
    refuse_place(out, folder=True, overwrite=asked.overwrite, files=taken)
    with keeping(lambda: f"the figures finished so far are whole in {out}; the same command draws them all"):
        drawn = draw_figures(Study.open(asked.runs), out, asked.figure or None, asked.formats)
    if asked.json:
        print_json([{"name": i.name, "files": [str(path) for path in i.paths], "why": i.why} for i in drawn])
    else:
        for item in drawn:
            print_text(f"{item.name}: {item.why or ', '.join(str(path) for path in item.paths)}")
    if not any(item.paths for item in drawn):
        raise UndefinedFigureError("none of the figures could be drawn from these runs")


def _shows(stem: str, names: Sequence[str], others: Set[str]) -> bool:
    """Whether a file is that of one of the figures; several models add the model's name."""
    return stem in names or (stem not in others and any(stem.startswith(f"{name}-") for name in names))


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Writes, Output):
    """Write one HTML file about runs: answers, samples, findings, figures, tables; it opens offline."""

    runs: Runs
    out: Annotated[Path, Opt("The HTML file.", "-o", metavar="FILE", read=local_place)] = Path("report.html")
    samples: Annotated[
        int, Opt("Samples that can be explored in the file; 0 keeps every text out.", least=0)
    ] = 12
    title: Annotated[str | None, Opt("Title of the page.")] = None
    bootstrap: Bootstrap = 1000


@takes(ReportCommand)
def report(asked: ReportCommand) -> None:
    """Write the file."""
    from orderlens.analysis import Options, Study
    from orderlens.cli.console import print_json, print_text
    from orderlens.metrics.estimate import Resampling
    from orderlens.show.report.build import report as write

    refuse_place(asked.out, overwrite=asked.overwrite)
    study = Study.open(asked.runs, Options(resampling=Resampling(asked.bootstrap)))
    path = write(study, asked.out, samples=asked.samples, title=asked.title)
    if asked.json:
        print_json({"file": str(path), "bytes": path.stat().st_size, "runs": study.run.names})
    else:
        print_text(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB; open it in a browser)")


@dataclass(frozen=True, kw_only=True)
class View(Output):
    """Look at runs in the browser: filter and sort samples, replay them, compare two orders; reads only.

    Only this machine can reach it, and only with the printed address. Ends with Ctrl-C.
    """

    runs: Runs
    port: Annotated[int, Opt("Port on 127.0.0.1; 0 takes a free one.", least=0, most=65535)] = 0
    browser: Annotated[bool, Opt("Open the page.", negative=True)] = True


@takes(View)
def view(asked: View) -> None:
    """Serve until Ctrl-C."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.show.viewer.serve import serve
    from orderlens.store.reader import open_run

    run = open_run(list(asked.runs))

    def ready(place: "Place") -> None:
        if asked.json:
            print_json({"address": place.address, "port": place.port, "runs": run.names})
        else:
            print_text(f"viewer: {place.address}\n(only from this machine; Ctrl-C ends it)")
        sys.stdout.flush()  # nothing follows until the end, and a script may wait for the address

    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        serve(run, port=asked.port, browser=asked.browser, ready=ready)
