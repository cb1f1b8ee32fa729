"""``orderlens runs list|show|verify|export|import|compact|watch``: look after run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text, stdout
from orderlens.cli.interrupt import Verbs
from orderlens.cli.watch import watch
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError, counted

if TYPE_CHECKING:
    from orderlens.store.protocol import Folder
    from orderlens.store.verify import Report

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run folder or its address (s3://…).")]


def _run_folder(path: str) -> Folder:
    """Return the folder of exactly one run, after checking that it is one."""
    from orderlens.store.folder import open_folder
    from orderlens.store.specfile import read_spec

    folder = open_folder(path)
    read_spec(folder)
    return folder


def list_runs(
    folder: Annotated[str, typer.Argument(help="A folder with runs in it, or one run.")] = ".",
    json: JsonFlag = False,
) -> None:
    """List the runs in a folder with their state and size."""
    from orderlens.store.overview import overview
    from orderlens.store.reader import find_runs

    found = [overview(item) for item in find_runs(folder)]
    if json:
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


def show(
    run: RunPath,
    sample: Annotated[
        str | None, typer.Option("--sample", help="Draw this sample: tokens, reveal numbers, confidence.")
    ] = None,
    order: Annotated[
        list[str] | None, typer.Option("--order", help="With --sample: only this order; repeat to compare.")
    ] = None,
    film: Annotated[
        Path | None,
        typer.Option(
            "--film", parser=opt.local_place, help="With --sample: write an animated SVG of the decoding."
        ),
    ] = None,
    overwrite: opt.OverwriteFlag = False,
    json: JsonFlag = False,
) -> None:
    """Show what a run is (state, tables, spec, provenance), or draw one of its samples."""
    from orderlens.store.overview import details

    if film is not None:
        refuse_place(film, overwrite=overwrite)
    if sample is not None:
        show_sample(run, sample, order or [], film=film, as_json=json)
        return
    if order or film:
        raise UserInputError(f"{'--order' if order else '--film'} goes with --sample ID")
    facts = details(_run_folder(run))
    if json:
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


def verify(
    run: RunPath,
    repair: Annotated[bool, typer.Option(help="Move damage aside and queue its units again.")] = False,
    quick: Annotated[bool, typer.Option(help="Compare only presence and size of parts.")] = False,
    force: Annotated[bool, typer.Option(help="Repair although workers may be active.")] = False,
    json: JsonFlag = False,
) -> None:
    """Check a run against its records; exit code 1 when something is wrong.

    With --repair the damage is moved to the folder quarantine, and running the original command again
    computes what is missing.
    """
    from orderlens.store.verify import repair_run, verify_run

    folder = _run_folder(run)
    report = repair_run(folder, force=force) if repair else verify_run(folder, quick=quick)
    if json:
        print_json({**report.to_json(), "repaired": repair and not report.ok})
    else:
        _print_report(report, repair)
    if not report.ok and not repair:
        raise typer.Exit(1)


def _print_report(report: Report, repaired: bool) -> None:
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


def export(
    run: Annotated[list[str], typer.Argument(metavar="RUN…", help="One or several runs.")],
    out: Annotated[Path, opt.out_option("The file to write.", "FILE")],
    table: Annotated[str, typer.Option(help="reveals, samples, outputs, verdicts, …")] = "reveals",
    format: Annotated[  # noqa: A002  the flag is --format
        str | None, typer.Option(help="parquet, csv, jsonl or arrow; default: the file's suffix.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With the text of each token (table reveals only).")
    ] = False,
    overwrite: opt.OverwriteFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write one table of one or several runs to a file."""
    from orderlens.store.export import export_table
    from orderlens.store.reader import open_run

    rows = export_table(open_run(run), table, out, format, tokens=tokens, overwrite=overwrite)
    if json:
        print_json({"file": str(out), "table": table, "rows": rows})
    else:
        print_text(f"{out}: {counted(rows, 'row')} of {table}")


def compact(
    run: RunPath,
    target_rows: Annotated[int, typer.Option(min=1, help="Reveals that are merged at once.")] = 1 << 21,
    json: JsonFlag = False,
) -> None:
    """Merge the many small parts of a complete run into few large ones."""
    from dataclasses import asdict

    from orderlens.store.compact import compact_run

    done = compact_run(_run_folder(run), target_rows=target_rows)
    if json:
        print_json({"run": run, **asdict(done)})
        return
    before, after = _size(done.bytes_before), _size(done.bytes_after)
    print_text(f"{run}: {done.parts_before} parts ({before}) became {done.parts_after} ({after})")


def import_traces(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV, JSON lines or Parquet, see docs.")],
    out: Annotated[str, typer.Option("--out", "-o", parser=opt.run_place, metavar="RUN", help="Run folder.")],
    column: Annotated[
        list[str] | None, typer.Option("--column", help="FIELD=COLUMN, where names do not tell: logq=lp.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Name of what decoded.")] = None,
    block_size: Annotated[
        int | None, typer.Option("--block-size", min=1, help="Tokens per block; default: one block.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="Of rows that do not say; 0 is greedy.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make a run of traces that another decoder recorded.

    A row is a revealed token with at least sample, order, logq (nats), and step or position.
    """
    from dataclasses import asdict

    from orderlens.texts.foreign import import_run

    found = import_run(
        file, out, columns=_pairs(column or ()), model=model, block_size=block_size, temperature=temperature
    )
    if json:
        print_json(asdict(found))
        return
    counts = (counted(found.n_samples, "sample"), counted(found.n_traces, "trace"))
    print_text(f"{out}: {', '.join(counts)}, {counted(found.n_reveals, 'reveal')} from {file}")
    for note in found.notes:
        print_text(f"  {note}")
    print_text(f"next: orderlens view {out}, orderlens report {out}, orderlens analyze {out}")


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return field → column of ``--column FIELD=COLUMN``."""
    found: dict[str, str] = {}
    for text in texts:
        field, sign, column = text.partition("=")
        if not (field and sign and column):
            raise UserInputError(f"--column '{text}' is not of the form FIELD=COLUMN")
        if field in found:
            raise UserInputError(f"--column names {field} twice; give each field one column")
        found[field] = column
    return found


def show_sample(
    run: str, sample_id: str, orders: Sequence[str], *, film: Path | None = None, as_json: bool = False
) -> None:
    """Print the traces of a sample below each other, or as JSON what pages show of it; or write a film."""
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


run_verbs = typer.Typer(
    cls=Verbs, help="Look at, verify, export, import and compact runs.", no_args_is_help=True
)
for verb in (list_runs, show, verify, export, import_traces, compact, watch):
    run_verbs.command(verb.__name__.partition("_")[0])(verb)
