"""``orderlens runs list|show|verify|export|import|compact|watch``: look after run folders."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text, stdout
from orderlens.cli.group import Verbs
from orderlens.cli.import_traces import import_traces
from orderlens.cli.show_sample import show_sample
from orderlens.cli.watch import watch
from orderlens.errors import UserInputError, counted

if TYPE_CHECKING:
    from orderlens.store.protocol import Folder
    from orderlens.store.verify import Report

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run folder or its address (s3://…).")]


def register(app: typer.Typer) -> None:
    """Add the verb ``runs`` with its commands."""
    runs = typer.Typer(
        cls=Verbs, help="Look at, verify, export, import and compact runs.", no_args_is_help=True
    )
    runs.command("list")(list_runs)
    runs.command("show")(show)
    runs.command("verify")(verify)
    runs.command("export")(export)
    runs.command("import")(import_traces)
    runs.command("compact")(compact)
    runs.command("watch")(watch)
    app.add_typer(runs, name="runs")


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
        typer.Option("--film", help="With --sample: write an animated SVG of the decoding instead."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show what a run is (state, tables, spec, provenance), or draw one of its samples."""
    from orderlens.store.overview import details

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
    overwrite: Annotated[bool, typer.Option(help="Replace the file if it exists.")] = False,
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
