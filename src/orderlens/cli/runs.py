"""``orderlens runs list|show|watch|diff``: look at run folders. No model is needed.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes, name_incomplete, opened
from orderlens.cli.terminal import print_json, print_text
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError, counted
from orderlens.runs.options import FILE_OUT, local_place
from orderlens.runs.request import Opt

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from orderlens.analysis.diff import Diff
    from orderlens.runs.worker_log import WorkerState
    from orderlens.store.protocol import Folder

RunPath = Annotated[str, Opt("Run folder, or its address (s3://…).", place=True, metavar="RUN")]
SampleId = Annotated[str | None, Opt("Draw this sample: tokens, reveal order, confidence.")]
ShownOrders = Annotated[Sequence[str], Opt("Draw only this order; needs --sample, repeatable.", repeat=True)]
SILENT_S = 60.0
"""Seconds without a new state after which a worker is shown as silent."""
LISTED = 20
"""Differing texts that are printed."""


def run_folder(path: str) -> "Folder":
    """Return the folder of one run; anything else is refused."""
    from orderlens.store.folder import open_folder
    from orderlens.store.specfile import read_spec

    folder = open_folder(path)
    read_spec(folder)
    return folder


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@dataclass(frozen=True, kw_only=True)
class ListRuns(Output):
    """List the runs in a folder with their state and size."""

    folder: Annotated[str, Opt("Folder of runs, or one run.", place=True)] = "."


@takes(ListRuns)
def list_runs(request: ListRuns) -> None:
    """Print the list."""
    from rich.table import Table

    from orderlens.cli.console import stdout
    from orderlens.store.overview import overview
    from orderlens.store.reader import find_runs

    found = [overview(item) for item in find_runs(request.folder)]
    if request.json:
        print_json(found)
        return
    table = Table("run", "state", "units", "reveals", "size", "orders", box=None, pad_edge=False)
    for item in found:
        table.add_row(*_list_row(item))
    stdout.print(table)


def _list_row(item: Mapping[str, Any]) -> list[str]:
    name = str(item["run"])
    if item["problem"]:
        return [name, f"{item['state']}: {item['problem']}", "", "", "", ""]
    reveals = f"{item['rows'].get('reveals', 0):,}"
    return [name, item["state"], str(item["units"]), reveals, size(item["bytes"]), ", ".join(item["orders"])]


@dataclass(frozen=True, kw_only=True)
class Show(Writes, Output):
    """Print a run's state, tables, spec and provenance, or draw one of its samples."""

    run: RunPath
    sample: SampleId = None
    order: ShownOrders = ()
    film: Annotated[
        Path | None,
        Opt("Write the decoding as an animated SVG; needs --sample.", metavar="FILE", read=local_place),
    ] = None


@takes(Show)
def show(request: Show) -> None:
    """Print facts, or a sample."""
    from orderlens.store.overview import details

    if request.film is not None:
        refuse_place(request.film, overwrite=request.overwrite)
    if request.sample is not None:
        show_sample(request.run, request.sample, request.order, film=request.film, as_json=request.json)
        return
    if request.order or request.film:
        raise UserInputError(f"{'--order' if request.order else '--film'} needs --sample ID")
    facts = details(run_folder(request.run))
    if request.json:
        print_json(facts)
        return
    for name in ("run", "state", "schema", "units", "parts"):
        print_text(f"{name + ':':<10} {facts[name]}")
    print_text(f"{'size:':<10} {size(facts['bytes'])}")
    print_text(f"{'orders:':<10} {', '.join(facts['orders'])}")
    for name, rows in sorted(facts["rows"].items()):
        print_text(f"{name + ':':<10} {counted(rows, 'row')}")
    print_text(f"spec ({facts['spec_digest'][:12]}):\n{dumps(facts['spec'], indent=2, ensure_ascii=False)}")
    print_text(f"started with:\n{dumps(facts['provenance'], indent=2, ensure_ascii=False)}")
    if len(facts["environments"]) > 1:
        print_text(f"computed in {len(facts['environments'])} different environments (see --json)")


def show_sample(
    run: str, sample_id: str, orders: Sequence[str], *, film: Path | None = None, as_json: bool = False
) -> None:
    """Print the traces of a sample, as text or JSON, or write them as a film."""
    from orderlens.cli.console import print_sketch, stdout
    from orderlens.show.views import Shown, fetch_sample, plain_sample

    view = fetch_sample(opened([run]), sample_id, orders=list(orders) or None)
    if as_json and film is None:
        print_json(plain_sample(view))
        return
    traces = tuple(view.trace(name) for name in orders) if orders else view.show().traces
    shown = Shown(view, traces)
    if film is not None:
        written = write_text(film, shown.film())
        print_json({"film": str(written)}) if as_json else print_text(f"film: {written}")
        return
    print_sketch(shown.text(max(stdout.width, 40)))
    if len(traces) < len(view.traces):
        print_text(f"\n{len(view.traces)} traces in all; name others with --order: {', '.join(view.labels)}")


@dataclass(frozen=True, kw_only=True)
class Watch(Output):
    """Show the progress of a run until it ends: units, tokens per second, state of each worker."""

    run: RunPath
    every: Annotated[float, Opt("Seconds between two updates.", least=0.2)] = 2.0
    once: Annotated[bool, Opt("Print the current state and exit.")] = False


@takes(Watch)
def watch(request: Watch) -> None:
    """Show the state until the run ends."""
    from rich.console import Group
    from rich.live import Live

    from orderlens.cli.console import stdout

    folder = run_folder(request.run)
    if request.json:
        print_json(look(folder))
        return
    if request.once or not stdout.is_terminal:  # a file gets one state, not repeated screens
        for part in picture(look(folder)):
            stdout.print(part)
        return
    with Live(console=stdout, auto_refresh=False, transient=False) as live:
        while True:
            facts = look(folder)
            live.update(Group(*picture(facts)), refresh=True)
            if facts["state"] != "running":
                return
            time.sleep(request.every)


def look(folder: "Folder") -> dict[str, Any]:
    """Return the state of a run and its workers as plain values."""
    from orderlens.runs.worker_log import read_failures, read_states, steps_left
    from orderlens.store.overview import overview

    facts, states = overview(folder), read_states(folder)
    busy = [state for state in states if not state.over]
    return {
        "run": facts["run"],
        "state": "running" if busy and facts["state"] == "incomplete" else facts["state"],
        "units": facts.get("units", 0),
        "rate": sum(state.rate for state in busy),
        "left": steps_left(states),
        "failures": [asdict(row) for row in read_failures(folder)],
        "workers": [
            {**asdict(state), "rate": state.rate, "note": note(state, time.time())} for state in states
        ],
    }


def note(state: "WorkerState", now: float) -> str:
    """Return the worker's state for the table; ``dead`` or ``silent`` if it stopped writing its state."""
    from orderlens.runs.worker_log import ENDED

    silent = now - state.time
    if state.state in ENDED:
        return state.state
    if state.over:
        return "dead"
    return state.state if silent < SILENT_S else f"silent for {silent:.0f} s"


def picture(facts: dict[str, Any]) -> "list[Text | Table]":
    """Return the state of a run as lines and a table."""
    from rich.table import Table
    from rich.text import Text

    head = f"{facts['run']}: {facts['state']}, units committed: {facts['units']}{_pace(facts)}"
    columns = ("worker", "host", "device", "state", "units", "tokens", "tokens/s")
    table = Table(*columns, box=None, pad_edge=False)
    for row in facts["workers"]:
        table.add_row(row["name"], row["host"], row["device"], row["note"], *_numbers(row))
    return [Text(head, overflow="fold"), table, *_failed(facts["failures"])]


def _pace(facts: dict[str, Any]) -> str:
    """Return speed and remaining time of a running run."""
    if facts["state"] != "running":
        return ""
    rate, left = facts["rate"], facts["left"]
    about = f", {left:,} tokens left" if left is not None else ""
    minutes = f", about {left / rate / 60:,.0f} min" if left is not None and rate > 0 else ""
    return f", {rate:,.0f} tokens/s{about}{minutes}"


def _numbers(row: dict[str, Any]) -> list[str]:
    return [f"{row['units']:,}", f"{row['tokens']:,}", f"{row['rate']:,.0f}"]


def _failed(rows: Sequence[dict[str, Any]]) -> "list[Text]":
    from rich.text import Text

    return [
        Text(f"failed: {', '.join(row['samples'][:3])} (attempt {row['attempt'] + 1}): {row['error']}")
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class DiffRuns(Writes, Output):
    """Compare two runs pass by pass; exit code 1 if they decode differently.

    Each text gets a verdict: same, tie, rounding, different-rule, different-model or missing.
    golden:PRESET names a run of that preset that is shipped with the package.
    """

    a: Annotated[str, Opt("Run folder, its address, or golden:PRESET.", place=True, metavar="A")]
    b: Annotated[str, Opt("Run to compare with.", place=True, metavar="B")]
    noise: Annotated[
        float | None,
        Opt(
            "Differences of log-probabilities up to here count as rounding (nats).",
            shown="what the runs measured, else by precision",
            least=0,
        ),
    ] = None
    out: Annotated[Path | None, replace(FILE_OUT, help="Also write an HTML page with both paths.")] = None


@takes(DiffRuns)
def diff_runs(request: DiffRuns) -> int:
    """Print the comparison; return 1 if the runs differ."""
    from orderlens.analysis.diff import diff

    if request.out is not None:
        refuse_place(request.out, overwrite=request.overwrite)
    found = diff(request.a, request.b, noise=request.noise)
    for run in (found.a, found.b):
        name_incomplete(run)
    page = None
    if request.out is not None:
        from orderlens.show.diff_page import diff_page

        page = diff_page(found, request.out)
    if request.json:
        print_json(found.to_json() | ({"page": str(page)} if page else {}))
    else:
        print_text("\n".join(_lines(found)))
        if page:
            print_text(f"page: {page}")
    return 0 if found.same else 1


def _lines(found: "Diff") -> Iterator[str]:
    counts = ", ".join(f"{count} {name}" for name, count in found.totals.items() if count)
    yield f"{'same' if found.same else 'different'}: {counts or 'the runs hold no traces'}"
    if found.rows and all(row.a is None or row.b is None for row in found.rows):
        yield "no trace is in both: texts or orders differ; with one order per run, the name may differ"
    left, right = found.tokens_per_pass
    if left == left and right == right:
        yield f"tokens per pass: {left:.3g} in A, {right:.3g} in B"
    yield f"noise: {found.noise:.3g} nats ({found.noise_source})"
    for item in found.explanations:
        yield f"explained by {item.setting}: {item.text} ({item.source})"
    rows = [row for row in found.table().to_arrow().to_pylist() if row["verdict"] != "same"]
    for row in rows[:LISTED]:
        orders = " | ".join(dict.fromkeys(str(row[name] or "–") for name in ("order_a", "order_b")))
        yield f"  {row['sample_id']} ({orders}): {row['verdict']}{_first(row)}"
    if len(rows) > LISTED:
        yield f"  and {len(rows) - LISTED} more (see --json)"


def _first(row: dict[str, object]) -> str:
    """Return where a pair first differs, with both candidates; passes count from 1, as in drawings."""
    if not isinstance(number := row["first_pass"], int):
        return ""
    sides = []
    for name, place in (("a", row["first_position"]), ("b", row["position_b"])):
        p = row[f"p_{name}"]
        if isinstance(p, float):
            sides.append(f"{name.upper()} token {row[f'token_{name}']} at {place}, p = {p:.4g}")
    return f" in pass {number + 1}, position {row['first_position']}: {'; '.join(sides)}"
