"""``orderlens demo``: the paper's experiments in small; one decoding is drawn while the rest is computed.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderlens.cli.command import Output, takes
from orderlens.cli.studies import OpenBar, opened_bars, run_plan
from orderlens.cli.terminal import print_text
from orderlens.common.files import refuse_place
from orderlens.errors import counted
from orderlens.runs.options import RESUMED_OUT, Computing

if TYPE_CHECKING:
    from orderlens.analysis.table import Cell, Table
    from orderlens.claims.judge import Reading
    from orderlens.cli.console import Bar, Lines
    from orderlens.studies.replicate_plan import ReplicatePlan
    from orderlens.studies.results import Results

DRAWN = "max-prob"
"""The order whose answer is drawn."""
COLUMNS = {"fixed-sequence": ("mean", "var", "gini_block0", "argmax_accuracy"), "generation": ()}
"""Tables that are printed → their columns after the key; an empty tuple prints all."""
METRICS = ("mean_logq", "var", "eos_fraction", "external_ppl_whole", "distinct_3")
"""Rows of the table ``generation`` that are printed: those of the paper's Table 1."""
FULL_RESULT = "The paper's experiments on tiny"
"""Title of the page with the same study on 600 texts (docs/results/tiny.md)."""


@dataclass(frozen=True, kw_only=True)
class Demo(Output):
    """Show in minutes what the reveal order does: every experiment of the paper on the bundled model."""

    out: Annotated[Path, RESUMED_OUT] = Path("demo-out")


@takes(Demo)
def demo(request: Demo) -> None:
    """Run the small preset and print what was found in a few lines."""
    from orderlens.studies.replicate_plan import ReplicatePlan, demo_model, make_plan

    plan = make_plan("demo", demo_model())
    if not request.json:
        print_text(opening(plan))
    refuse_place(request.out, folder=True)
    bars = opened_bars("--limit", quiet=request.json)
    run_plan(
        plan,
        request.out,
        ReplicatePlan.stages,
        Computing(),
        as_json=request.json,
        bars=bars if request.json else _with_sketch(bars, request.out / "runs" / "questions"),
        print_results=_print_results,
    )


def opening(plan: "ReplicatePlan") -> str:
    """Return one sentence: what the demo does and how long it takes."""
    orders = len({name.partition(":")[0] for name in plan.score_orders})
    told = (
        "The demo repeats the paper's experiments in small, in less than 5 minutes on two CPU cores: "
        f"{plan.n_texts} texts and {plan.questions} questions under {orders} orders with {plan.model}."
    )
    if plan.model != "tiny":
        told += f" It uses {plan.model} because the bundled model tiny lacks its weights or torch here."
    return told


def _with_sketch(bars: OpenBar, run: Path) -> OpenBar:
    """Return progress bars that draw one answer of ``run`` as soon as it is complete."""
    drawn: list[bool] = []

    @contextmanager
    def show(label: str) -> "Iterator[Bar | Lines]":
        with bars(label) as bar:
            yield bar
        if not drawn and (run / "complete.json").is_file():
            drawn.append(True)
            draw_answer(run)

    return show


def draw_answer(run: Path) -> None:
    """Draw the answer with the most EOS: there it is seen best that the order is not left to right."""
    from orderlens.cli.console import print_sketch, stdout
    from orderlens.show.views import Shown, fetch_sample
    from orderlens.store.reader import open_run

    opened = open_run(run)
    rows = [row for row in opened.samples().to_arrow().to_pylist() if row["order"] == DRAWN]
    view = fetch_sample(opened, max(rows, key=lambda row: int(row["n_eos"]))["sample_id"], orders=[DRAWN])
    print_text(
        f"\nOne answer, decoded with {DRAWN}. Under each token: the step at which it was revealed, "
        "and its probability as a bar.\n"
    )
    print_sketch(Shown(view, view.traces).text(max(stdout.width, 40)))
    print_text("")


def _print_results(results: "Results") -> None:
    """Print two tables, one line per question, and where the rest is."""
    from orderlens.analysis import render
    from orderlens.cli.console import table_width

    print_text(
        "\n"
        + render([_short(table) for table in results.tables if table.name in COLUMNS], "text", table_width())
    )
    print_text("What was found:")
    for answer in results.answers:
        print_text(f"- {answer.headline}")
    print_text(f"\n{open_findings(results.reading, results.n_texts)}")
    for note in results.notes:
        print_text(f"note: {note}")
    folder = results.folder
    print_text(f"\npage:     {results.page} (open it in a browser)")
    print_text(
        f"findings: {folder / 'findings.txt'}, tables: {folder / 'tables'}, figures: {folder / 'figures'}"
    )
    print_text(f"samples:  orderlens view {folder}")


def _short(table: "Table") -> "Table":
    """Return a table with the paper's columns and rows, without intervals."""
    named = COLUMNS[table.name]
    columns = tuple(column for column in table.columns if not named or column.name in named)
    rows = [row for row in table.rows if table.name != "generation" or row["metric"] in METRICS]
    note = "Intervals and further columns: see the page."
    cut = tuple({name: _without_interval(cell) for name, cell in row.items()} for row in rows)
    return replace(table, columns=columns, rows=cut, notes=(note,))


def _without_interval(cell: "Cell") -> "Cell":
    from orderlens.metrics.estimate import Estimate

    return Estimate(cell.value, n=cell.n, why=cell.why) if isinstance(cell, Estimate) else cell


def open_findings(reading: "Reading", n_texts: int) -> str:
    """Say how many findings so few texts leave open, and where the full result is."""
    counts = reading.counts()
    left = counts["left open"]
    total = counted(len(reading.findings), "finding")
    if not left:
        return f"{total}, none left open."
    return (
        f"{left} of {total} are left open: {counted(n_texts, 'text')} cannot decide more. "
        f'The same study on 600 texts is in the documentation: "{FULL_RESULT}" (docs/results/tiny.md).'
    )
