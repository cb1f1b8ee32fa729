"""``orderlens figures``: redraw the paper's figures from stored runs."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text
from orderlens.cli.interrupt import keeping
from orderlens.common.files import refuse_place


def figures(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, folders of runs, or a replication.")],
    out: Annotated[Path, opt.out_option("Where the files go.")] = Path("figures"),
    figure: Annotated[
        str | None,
        typer.Option("--figure", help="Comma-separated names; default: all."),
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Out of svg, png, pdf.")] = "svg,png,pdf",
    overwrite: opt.OverwriteFlag = False,
    json: JsonFlag = False,
) -> None:
    """Draw figures from runs, each with its data as JSON beside it; no model is needed."""
    from orderlens.analysis import Study
    from orderlens.errors import UndefinedFigureError
    from orderlens.figures.catalogue import FIGURES, draw_figures

    names = FIGURES.names() if figure is None else opt.entries(figure)
    for name in names if figure else ():
        FIGURES.get(name)
    others = set(FIGURES.names()) - set(names)
    taken = (path for path in sorted(out.glob("*.*")) if _shows(path.stem, names, others))
    refuse_place(out, folder=True, overwrite=overwrite, files=taken)
    with keeping(lambda: f"the figures finished so far are whole in {out}; the same command draws them all"):
        drawn = draw_figures(Study.open(runs), out, names if figure else None, opt.entries(formats))
    if json:
        print_json([{"name": i.name, "files": [str(path) for path in i.paths], "why": i.why} for i in drawn])
    else:
        for item in drawn:
            print_text(f"{item.name}: {item.why or ', '.join(str(path) for path in item.paths)}")
    if not any(item.paths for item in drawn):
        raise UndefinedFigureError("none of the figures could be drawn from these runs")


def _shows(stem: str, names: Sequence[str], others: Set[str]) -> bool:
    """Whether a file is that of one of the figures; those of several models have the model's name behind."""
    return stem in names or (stem not in others and any(stem.startswith(f"{name}-") for name in names))
