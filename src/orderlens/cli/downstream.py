"""``orderlens downstream``: what graded runs say about the trace and correctness, in words or as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text
from orderlens.common.files import refuse_place

if TYPE_CHECKING:
    from orderlens.claims.judge import Reading


def downstream(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Graded runs of 'orderlens evaluate'.")],
    out: Annotated[Path | None, opt.out_option("Write reading, tables and figures to this folder.")] = None,
    grader: Annotated[str | None, typer.Option(help="Use this grader's verdicts.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the runs' temperatures (default: lowest).")
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples of items behind intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of resampling and simulation.")] = 0,
    formats: Annotated[str, typer.Option("--format", help="Out of svg, png, pdf.")] = "svg,png,pdf",
    overwrite: opt.OverwriteFlag = False,
    json: JsonFlag = False,
) -> None:
    """Say what graded runs support about Var and correctness, and what they do not.

    The folder holds index.html, results.md, summary.txt, summary.json, tables/, figures/; no text of data.
    """
    from orderlens.analysis import Options, Study
    from orderlens.metrics.estimate import Resampling
    from orderlens.studies.downstream import graded_study, read_downstream, write_downstream

    options = Options(resampling=Resampling(bootstrap, seed), temperature=temperature, grader=grader)
    if out is not None:
        refuse_place(out, folder=True, overwrite=overwrite)
    study = graded_study(Study.open(runs, options))
    if out is None:
        reading: Reading = read_downstream(study)
    else:
        reading = write_downstream(study, out, opt.entries(formats)).reading
    if json:
        print_json(reading.record() | {"out": None if out is None else str(out)})
        return
    print_text(reading.text())
    if out is not None:
        print_text(f"report: {out / 'index.html'}")
