"""``orderlens runs list|show|verify|export|import|compact``: inspect and maintain run folders.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes, opened
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError, counted
from orderlens.runs.options import BLOCK_SIZE, FILE_OUT, RUN_OUT, as_pairs, local_place, pairs
from orderlens.runs.request import NEEDED, Opt

if TYPE_CHECKING:
    from orderlens.store.protocol import Folder
    from orderlens.store.verify import Report

RunPath = Annotated[str, Opt("Run folder, or its address (s3://…).", place=True, metavar="RUN")]
SampleId = Annotated[str | None, Opt("Draw this sample: tokens, reveal order, confidence.")]
ShownOrders = Annotated[Sequence[str], Opt("Draw only this order; needs --sample, repeatable.", repeat=True)]
StoredTable = Annotated[
    str | None,
    Opt(
        "Table to write: reveals, samples, outputs, revisions, …",
        shown="reveals, with the events of policies that revise",
    ),
]
FileFormat = Annotated[
    str | None, Opt("File format: parquet, csv, jsonl or arrow.", name="format", shown="by the file's suffix")
]
ForeignFile = Annotated[Path, Opt("CSV, TSV, JSON Lines or Parquet file with one row per token.", place=True)]
ColumnNames = Annotated[
    Sequence[str],
    Opt(
        "Column that holds a field, e.g. logq=lp; repeatable.",
        repeat=True,
        metavar="FIELD=COLUMN",
        read=pairs("column", "FIELD=COLUMN"),
    ),
]
DecoderName = Annotated[str | None, Opt("Name of the model that decoded.", "-m")]
MissingTemperature = Annotated[float | None, Opt("Temperature of rows without one; 0 is greedy.", least=0)]
TARGET_ROWS = 1 << 21
"""Reveals per part that ``compact`` aims at."""


def _run_folder(path: str) -> "Folder":
    """Return the folder of one run; anything else is refused."""
    from orderlens.store.folder import open_folder
    from orderlens.store.specfile import read_spec

    folder = open_folder(path)
    read_spec(folder)
    return folder


@dataclass(frozen=True, kw_only=True)
class ListRuns(Output):
    """List the runs in a folder with their state and size."""

    folder: Annotated[str, Opt("Folder of runs, or one run.", place=True)] = "."


@takes(ListRuns)
def list_runs(request: ListRuns) -> None:
    """Print the list."""
    from rich.table import Table

    from orderlens.cli.console import print_json, stdout
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
    return [name, item["state"], str(item["units"]), reveals, _size(item["bytes"]), ", ".join(item["orders"])]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


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
    from orderlens.cli.console import print_json, print_text
    from orderlens.store.overview import details

    if request.film is not None:
        refuse_place(request.film, overwrite=request.overwrite)
    if request.sample is not None:
        show_sample(request.run, request.sample, request.order, film=request.film, as_json=request.json)
        return
    if request.order or request.film:
        raise UserInputError(f"{'--order' if request.order else '--film'} needs --sample ID")
    facts = details(_run_folder(request.run))
    if request.json:
        print_json(facts)
        return
    for name in ("run", "state", "schema", "units", "parts"):
        print_text(f"{name + ':':<10} {facts[name]}")
    print_text(f"{'size:':<10} {_size(facts['bytes'])}")
    print_text(f"{'orders:':<10} {', '.join(facts['orders'])}")
    for name, rows in sorted(facts["rows"].items()):
        print_text(f"{name + ':':<10} {counted(rows, 'row')}")
    print_text(f"spec ({facts['spec_digest'][:12]}):\n{dumps(facts['spec'], indent=2, ensure_ascii=False)}")
    print_text(f"started with:\n{dumps(facts['provenance'], indent=2, ensure_ascii=False)}")
    if len(facts["environments"]) > 1:
        print_text(f"computed in {len(facts['environments'])} different environments (see --json)")


@dataclass(frozen=True, kw_only=True)
class Verify(Output):
    """Check the files of a run against their recorded checksums; exit code 1 if something is wrong.

    --repair moves damaged files to quarantine/; the command that wrote the run then recomputes them.
    """

    run: RunPath
    repair: Annotated[bool, Opt("Move damaged files to quarantine/ and queue their units again.")] = False
    quick: Annotated[bool, Opt("Check only that the parts exist and have the right size.")] = False
    force: Annotated[bool, Opt("Repair even if workers may be active.")] = False


@takes(Verify)
def verify(request: Verify) -> int:
    """Print what was found; return 1 if something is wrong and was not repaired."""
    from orderlens.cli.console import print_json
    from orderlens.store.verify import repair_run, verify_run

    folder = _run_folder(request.run)
    report = (
        repair_run(folder, force=request.force) if request.repair else verify_run(folder, quick=request.quick)
    )
    if request.json:
        print_json({**report.to_json(), "repaired": request.repair and not report.ok})
    else:
        _print_report(report, request.repair)
    return 0 if report.ok or request.repair else 1


def _print_report(report: "Report", repaired: bool) -> None:
    from orderlens.cli.console import print_text

    rows = ", ".join(f"{count:,} {name}" for name, count in sorted(report.rows.items())) or "no rows"
    state = "complete" if report.complete else "not complete"
    print_text(
        f"{report.run}: {counted(report.units, 'unit')}, {counted(report.parts, 'part')}, {rows}; {state}"
    )
    for finding in report.findings:
        print_text(f"  {finding.kind}: {finding.path}: {finding.message}")
    if report.leftovers:
        print_text(f"  {counted(len(report.leftovers), 'unused file')} of interrupted workers (harmless)")
    if report.redo:
        print_text(f"  units to redo: {', '.join(report.redo)}")
    if report.ok:
        print_text("  all files match their records")
    elif repaired:
        print_text(
            "  repaired: damaged files are in quarantine/; run the original command again to recompute them"
        )
    else:
        print_text("  add --repair to move damaged files to quarantine/ and queue their units again")


@dataclass(frozen=True, kw_only=True)
class Export(Writes, Output):
    """Write one table of one or several runs to a file."""

    run: Annotated[Sequence[str], Opt("Run folders.", place=True, metavar="RUN…", given=NEEDED, repeat=True)]
    out: Annotated[Path, FILE_OUT]
    table: StoredTable = None
    form: FileFormat = None
    tokens: Annotated[bool, Opt("Add the text of each token (table reveals only).")] = False


@takes(Export)
def export(request: Export) -> None:
    """Write the file."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.store.export import export_table, revises

    run, out = opened(request.run), request.out
    rows = export_table(
        run, request.table, out, request.form, tokens=request.tokens, overwrite=request.overwrite
    )
    table = request.table or ("reveals and revisions" if revises(run) else "reveals")
    if request.json:
        print_json({"file": str(out), "table": table, "rows": rows})
    else:
        print_text(f"{out}: {counted(rows, 'row')} of {table}")


@dataclass(frozen=True, kw_only=True)
class Compact(Output):
    """Merge the small parts of a complete run into fewer, larger ones."""

    run: RunPath
    target_rows: Annotated[int, Opt("Approximate number of reveals per part.", least=1)] = TARGET_ROWS


@takes(Compact)
def compact(request: Compact) -> None:
    """Merge the parts and print their numbers."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.store.compact import compact_run

    done = compact_run(_run_folder(request.run), target_rows=request.target_rows)
    if request.json:
        print_json({"run": request.run, **asdict(done)})
        return
    before, after = _size(done.bytes_before), _size(done.bytes_after)
    print_text(
        f"{request.run}: {done.parts_before} parts ({before}) merged into {done.parts_after} ({after})"
    )


@dataclass(frozen=True, kw_only=True)
class Import(Output):
    """Convert traces that another decoder recorded into a run.

    Each row is one revealed token: its sample, order, logq in nats, and step or position.
    """

    file: ForeignFile
    out: Annotated[str, replace(RUN_OUT, help="Run folder to write.")]
    column: ColumnNames = ()
    model: DecoderName = None
    block_size: Annotated[int | None, replace(BLOCK_SIZE, shown="one block")] = None
    temperature: MissingTemperature = None


@takes(Import)
def import_traces(request: Import) -> None:
    """Import the file and suggest the next commands."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.cli.summary import print_next
    from orderlens.texts.foreign import import_run

    out = request.out
    found = import_run(
        request.file,
        out,
        columns=as_pairs("column", request.column),
        model=request.model,
        block_size=request.block_size,
        temperature=request.temperature,
    )
    if request.json:
        print_json(asdict(found))
        return
    counts = (counted(found.n_samples, "sample"), counted(found.n_traces, "trace"))
    print_text(f"{out}: {', '.join(counts)}, {counted(found.n_reveals, 'reveal')} from {request.file}")
    for note in found.notes:
        print_text(f"  {note}")
    print_next(f"view {quote(out)}", f"report {quote(out)}")


def show_sample(
    run: str, sample_id: str, orders: Sequence[str], *, film: Path | None = None, as_json: bool = False
) -> None:
    """Print the traces of a sample, as text or JSON, or write them as a film."""
    from orderlens.cli.console import print_json, print_sketch, print_text, stdout
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
