"""``orderlens runs verify|export|import|compact``: maintain run folders and exchange their tables.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes, opened
from orderlens.cli.runs import RunPath, run_folder, size
from orderlens.cli.terminal import print_json, print_text
from orderlens.errors import counted
from orderlens.runs.options import BLOCK_SIZE, COLUMNS, FILE_OUT, RUN_OUT, as_pairs
from orderlens.runs.request import NEEDED, Opt

if TYPE_CHECKING:
    from orderlens.store.verify import Report

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
DecoderName = Annotated[str | None, Opt("Name of the model that decoded.", "-m")]
MissingTemperature = Annotated[float | None, Opt("Temperature of rows without one; 0 is greedy.", least=0)]


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
    from orderlens.store.verify import repair_run, verify_run

    folder = run_folder(request.run)
    report = (
        repair_run(folder, force=request.force) if request.repair else verify_run(folder, quick=request.quick)
    )
    if request.json:
        print_json({**report.to_json(), "repaired": request.repair and not report.ok})
    else:
        _print_report(report, request.repair)
    return 0 if report.ok or request.repair else 1


def _print_report(report: "Report", repaired: bool) -> None:
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


@takes(Compact)
def compact(request: Compact) -> None:
    """Merge the parts and print their numbers."""
    from orderlens.store.compact import compact_run

    done = compact_run(run_folder(request.run))
    if request.json:
        print_json({"run": request.run, **asdict(done)})
        return
    before, after = size(done.bytes_before), size(done.bytes_after)
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
    columns: Annotated[Sequence[str], COLUMNS] = ()
    model: DecoderName = None
    block_size: Annotated[int | None, replace(BLOCK_SIZE, shown="one block")] = None
    temperature: MissingTemperature = None


@takes(Import)
def import_traces(request: Import) -> None:
    """Import the file and suggest the next commands."""
    from orderlens.cli.summary import print_next
    from orderlens.texts.foreign import import_run

    out = request.out
    found = import_run(
        request.file,
        out,
        columns=as_pairs("columns", request.columns),
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
