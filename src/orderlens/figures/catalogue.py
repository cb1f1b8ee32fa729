"""The figures of a run by name, and the loop that draws them into a folder.

A figure is a module with ``data(study)``, which returns plain numbers, and ``draw(data)``, which knows only
those numbers. Modules are imported on first use, so that listing figures needs no matplotlib.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from orderlens.errors import UndefinedFigureError, UnknownNameError, one_line
from orderlens.registry import suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

Data = dict[str, Any]


class FigureModule(Protocol):
    """What a figure's module offers."""

    def data(self, study: Study) -> Data:
        """Return what the figure shows; raises UndefinedFigureError when the run lacks it."""
        ...

    def draw(self, data: Mapping[str, Any]) -> Figure:
        """Draw it; ``data`` may come from the JSON sidecar, where NaN is None."""
        ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a figure's code is, what it shows, and its traces: score, generate, ending, sweep or evaluate."""

    module: str
    title: str
    traces: str

    def load(self) -> FigureModule:
        """Import the module."""
        return cast(FigureModule, importlib.import_module(f"orderlens.figures.{self.module}"))


FIGURES: dict[str, Recipe] = {
    "fixed-sequence": Recipe("fixed_sequence", "Variance against mean log q per order (Fig. 1a)", "score"),
    "lorenz": Recipe("lorenz", "Lorenz curves of self-information in block 0 (Fig. 1b)", "score"),
    "coherence": Recipe("coherence", "Dependence of log P on the order, beside the noise floor", "score"),
    "reveal-order": Recipe("reveal_order", "Where each order is at each step of block 0", "generate"),
    "unmask": Recipe("unmask", "Reveal numbers over the tokens of four texts (Fig. 2)", "ending"),
    "temperature": Recipe("temperature", "Greedy decoding against sampling (Fig. S1)", "sweep"),
    "jensen": Recipe("jensen", "Uniform spreading: fitted noise and the cost of uneven confidence", "score"),
    "accuracy-var": Recipe("accuracy_var", "Accuracy against content Var per order", "evaluate"),
    "accuracy-by-var": Recipe("accuracy_bins", "Accuracy in bins of Var inside each order", "evaluate"),
    "predictors": Recipe("predictors", "AUROC of Var, mean log q and length for correctness", "evaluate"),
    "var-effect": Recipe("var_effect", "Effect of Var with and without mean log q and length", "evaluate"),
}
DOWNSTREAM = tuple(name for name, item in FIGURES.items() if item.traces == "evaluate")
"""Figures of graded runs."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure that was asked for: its files (the JSON last), or why there is none."""

    name: str
    title: str
    paths: tuple[Path, ...] = ()
    why: str | None = None


def figure_names() -> list[str]:
    """Return the names of all figures."""
    return list(FIGURES)


def recipe(name: str) -> Recipe:
    """Return the recipe of a figure; an unknown name is answered with the nearest known one."""
    if name not in FIGURES:
        raise UnknownNameError(
            f"unknown figure '{name}'{suggest(name, FIGURES)} (known: {', '.join(FIGURES)})"
        )
    return FIGURES[name]


def draw_figures(
    studies: Study | Mapping[str, Study],
    folder: str | Path,
    names: Iterable[str] | None = None,
    formats: Sequence[str] | None = None,
) -> list[Drawn]:
    """Draw figures into ``folder``, each with its data beside it; those the run cannot fill say why.

    Args:
        studies: one study, or the study for each kind of traces (see ``Recipe``).
        folder: where the files go.
        names: which figures; all by default.
        formats: picture formats; all by default.
    """
    from orderlens.figures.save import FORMATS, save_figure

    out = []
    for name in figure_names() if names is None else names:
        item = recipe(name)
        study = studies.get(item.traces) if isinstance(studies, Mapping) else studies
        if study is None:
            wanted = "generate" if item.traces == "ending" else item.traces
            out.append(Drawn(name, item.title, why=f"there are no '{wanted}' traces"))
            continue
        module = item.load()
        try:
            data = module.data(study)
        except UndefinedFigureError as error:
            out.append(Drawn(name, item.title, why=one_line(error)))
            continue
        paths = save_figure(module.draw(data), data, folder, name, formats or FORMATS)
        out.append(Drawn(name, item.title, tuple(paths)))
    return out
