"""``orderlens runs list|show|verify|export|import|compact|watch``: look after run folders.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.read import Writes
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError, counted
from orderlens.runs.options import as_pairs, local_place, pairs, run_place
from orderlens.runs.request import NEEDED, Opt

if TYPE_CHECKING:
    from orderlens.store.protocol import Folder
    from orderlens.store.verify import Report

RunPath = Annotated[str, Opt("A run folder or its address (s3://…).", place=True, metavar="RUN")]


def _run_folder(path: str) -> "Folder":
    """Return the folder of exactly one run, after checking that it is one."""
    from orderlens.store.folder import open_folder
    from orderlens.store.specfile import read_spec

    folder = open_folder(path)
    read_spec(folder)
    return folder


@dataclass(frozen=True, kw_only=True)
class ListRuns(Output):
    """List the runs in a folder with their state and size."""

    folder: Annotated[str, Opt("A folder with runs in it, or one run.", place=True)] = "."


@takes(ListRuns)
def list_runs(asked: ListRuns) -> None:
    """Print the list."""
    from rich.table import Table

    from orderlens.cli.console import print_json, stdout
    from orderlens.store.overview import overview
    from orderlens.store.reader import find_runs

    found = [overview(item) for item in find_runs(asked.folder)]
    if asked.json:
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
    """Show what a run is (state, tables, spec, provenance), or draw one of its samples."""

    run: RunPath
    sample: Annotated[str | None, Opt("Draw this sample: tokens, reveal numbers, confidence.")] = None
    order: Annotated[
        Sequence[str], Opt("With --sample: only this order; repeat to compare.", repeat=True)
    ] = ()
    film: Annotated[
        Path | None,
        Opt(
            "With --sample: write an animated SVG of the decoding instead.", metavar="FILE", read=local_place
        ),
    ] = None


@takes(Show)
def show(asked: Show) -> None:
    """Print facts, or a sample."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.store.overview import details

    if asked.film is not None:
        refuse_place(asked.film, overwrite=asked.overwrite)
    if asked.sample is not None:
        show_sample(asked.run, asked.sample, asked.order, film=asked.film, as_json=asked.json)
        return
    if asked.order or asked.film:
        raise UserInputError(f"{'--order' if asked.order else '--film'} goes with --sample ID")
    facts = details(_run_folder(asked.run))
    if asked.json:
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
    """Check a run against its records; exit code 1 when something is wrong.

    With --repair the damage is moved to the folder quarantine, and running the original command again
    computes what is missing.
    """

    run: RunPath
    repair: Annotated[bool, Opt("Move damage aside and queue its units again.")] = False
    quick: Annotated[bool, Opt("Compare only presence and size of parts.")] = False
    force: Annotated[bool, Opt("Repair although workers may be active.")] = False


@takes(Verify)
def verify(asked: Verify) -> int:
    """Print what was found; 1 when something is wrong and was left so."""
    from orderlens.cli.console import print_json
    from orderlens.store.verify import repair_run, verify_run

    folder = _run_folder(asked.run)
    report = repair_run(folder, force=asked.force) if asked.repair else verify_run(folder, quick=asked.quick)
    if asked.json:
        print_json({**report.to_json(), "repaired": asked.repair and not report.ok})
    else:
        _print_report(report, asked.repair)
    return 0 if report.ok or asked.repair else 1


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
        print_text("  everything matches its records")
    elif repaired:
        print_text(
            "  repaired: damage is in quarantine/; run the original command again to compute what is missing"
        )
    else:
        print_text("  add --repair to move the damage aside and queue the units again")


@dataclass(frozen=True, kw_only=True)
class Export(Writes, Output):
    """Write one table of one or several runs to a file."""

    run: Annotated[
        Sequence[str], Opt("One or several runs.", place=True, metavar="RUN…", given=NEEDED, repeat=True)
    ]
    out: Annotated[Path, Opt("The file to write.", "-o", metavar="FILE", read=local_place)]
    table: Annotated[str, Opt("reveals, samples, outputs, verdicts, …")] = "reveals"
    form: Annotated[
        str | None, Opt("parquet, csv, jsonl or arrow.", name="format", shown="the file's suffix")
    ] = None
    tokens: Annotated[bool, Opt("With the text of each token (table reveals only).")] = False


@takes(Export)
def export(asked: Export) -> None:
    """Write the file."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.store.export import export_table
    from orderlens.store.reader import open_run

    run, out, table = open_run(list(asked.run)), asked.out, asked.table
    rows = export_table(run, table, out, asked.form, tokens=asked.tokens, overwrite=asked.overwrite)
    if asked.json:
        print_json({"file": str(out), "table": table, "rows": rows})
    else:
        print_text(f"{out}: {counted(rows, 'row')} of {table}")


@dataclass(frozen=True, kw_only=True)
class Compact(Output):
    """Merge the many small parts of a complete run into few large ones."""

    run: RunPath


@takes(Compact)
def compact(asked: Compact) -> None:
    """Merge and say what came of it."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.store.compact import compact_run

    done = compact_run(_run_folder(asked.run))
    if asked.json:
        print_json({"run": asked.run, **asdict(done)})
        return
    before, after = _size(done.bytes_before), _size(done.bytes_after)
    print_text(f"{asked.run}: {done.parts_before} parts ({before}) became {done.parts_after} ({after})")


@dataclass(frozen=True, kw_only=True)
class Import(Output):
    """Make a run of traces that another decoder recorded.

    A row is a revealed token with at least sample, order, logq (nats), and step or position.
    """

    file: Annotated[Path, Opt("CSV, TSV, JSON lines or Parquet, see docs.", place=True)]
    out: Annotated[str, Opt("Run folder.", "-o", metavar="RUN", read=run_place)]
    column: Annotated[
        Sequence[str],
        Opt(
            "FIELD=COLUMN, where names do not tell: logq=lp.",
            repeat=True,
            metavar="FIELD=COLUMN",
            read=pairs("column", "FIELD=COLUMN"),
        ),
    ] = ()
    model: Annotated[str | None, Opt("Name of what decoded.", "-m")] = None
    block_size: Annotated[int | None, Opt("Tokens per block.", shown="one block", least=1)] = None
    temperature: Annotated[float | None, Opt("Of rows that do not say; 0 is greedy.", least=0)] = None


@takes(Import)
def import_traces(asked: Import) -> None:
    """Import and name what to do next."""
    from orderlens.cli.console import print_json, print_text
    from orderlens.texts.foreign import import_run

    out = asked.out
    found = import_run(
        asked.file,
        out,
        columns=as_pairs("column", asked.column),
        model=asked.model,
        block_size=asked.block_size,
        temperature=asked.temperature,
    )
    if asked.json:
        print_json(asdict(found))
        return
    counts = (counted(found.n_samples, "sample"), counted(found.n_traces, "trace"))
    print_text(f"{out}: {', '.join(counts)}, {counted(found.n_reveals, 'reveal')} from {asked.file}")
    for note in found.notes:
        print_text(f"  {note}")
    print_text(f"next: orderlens view {out}, orderlens report {out}, orderlens analyze {out}")


def show_sample(
    run: str, sample_id: str, orders: Sequence[str], *, film: Path | None = None, as_json: bool = False
) -> None:
    """Print the traces of a sample below each other, or as JSON what pages show of it; or write a film."""
    from orderlens.cli.console import print_json, print_text, stdout
    from orderlens.show.views import Shown, fetch_sample, plain_sample
    from orderlens.store.reader import open_run

    view = fetch_sample(open_run(run), sample_id, orders=list(orders) or None)
    if as_json and film is None:
        print_json(plain_sample(view))
        return
    traces = tuple(view.trace(name) for name in orders) if orders else view.show().traces
    shown = Shown(view, traces)
    if film is not None:
        written = write_text(film, shown.film())
        print_json({"film": str(written)}) if as_json else print_text(f"film: {written}")
        return
    print_text(shown.text(max(stdout.width, 40)))
    if len(traces) < len(view.traces):
        print_text(f"\n{len(view.traces)} traces in all; name others with --order: {', '.join(view.labels)}")
