"""``orderlens report``: one self-contained HTML file about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text
from orderlens.common.files import refuse_place


def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Run folders, folders of runs, or a replication.")
    ],
    out: Annotated[Path, opt.out_option("The HTML file.", "FILE")] = Path("report.html"),
    samples: Annotated[
        int, typer.Option(min=0, help="Samples that can be explored in the file; 0 keeps every text out.")
    ] = 12,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples of texts behind intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of resampling.")] = 0,
    overwrite: opt.OverwriteFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write one HTML file about runs: answers, samples, findings, figures, tables; it opens offline."""
    from orderlens.analysis import Options, Study
    from orderlens.metrics.estimate import Resampling
    from orderlens.show.report.build import report as write

    refuse_place(out, overwrite=overwrite)
    study = Study.open(runs, Options(resampling=Resampling(bootstrap, seed)))
    path = write(study, out, samples=samples, title=title)
    if json:
        print_json({"file": str(path), "bytes": path.stat().st_size, "runs": study.run.names})
    else:
        print_text(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB; open it in a browser)")
