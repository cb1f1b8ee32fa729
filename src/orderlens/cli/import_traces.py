"""``orderlens runs import``: traces that another decoder recorded become a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text
from orderlens.errors import UserInputError, counted


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

    from orderlens.imports import import_run

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
