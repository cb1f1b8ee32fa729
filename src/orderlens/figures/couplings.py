"""Cost of committing several tokens per pass: couplings with their bound, parts of the loss and of Var."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orderlens.analysis.table import has_couplings
from orderlens.analysis.tables_couplings import (
    grouped_sets,
    loss_split,
    reference_of,
    variance_parts,
)
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    centre,
    error_lengths,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    panel_letters,
)
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

_COUPLING, _ORDER, _BOUND, _INSIDE = "#ac530f", "#1a273f", "#7c7c7c", "#558cef"
_VAR = (
    ("between", "between passes", _ORDER),
    ("inside", "inside passes", _INSIDE),
    ("coupling_between", "coupling, between", "#eea005"),
    ("coupling_inside", "coupling, inside", _COUPLING),
)


def data(study: Study) -> dict[str, Any]:
    """Return couplings by size of the set, and per policy the split of the loss and the parts of Var."""
    if not has_couplings(study):
        raise UndefinedFigureError("no couplings were measured: score with --couplings N")
    names = ("size", "coupling", "bound", "incoherence")
    groups: list[dict[str, Any]] = [
        {"group": str(row["group"]).removeprefix("tokens "), "n": row["n_sets"]}
        | {name: interval(row[name]) for name in names}
        for row in grouped_sets(study)
        if str(row["group"]).startswith("tokens ")
    ]
    loss = [
        {"order": row["order"]} | {name: interval(row[name]) for name in ("loss", "of_coupling", "of_order")}
        for row in loss_split(study, reference_of(study, study.scored))
    ]
    var = [
        {"order": row["order"]} | {name: interval(row[name]) for name, _, _ in _VAR}
        for row in variance_parts(study)
    ]
    return {"groups": groups, "loss": loss, "var": var}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the three panels; each leaves out policies without values."""
    with look():
        loss = [row for row in data["loss"] if is_drawable(row["of_coupling"])]
        var = _aligned(data["var"], loss)
        height = max(2.5, 0.9 + 0.24 * max(len(loss), 1))
        figure, panels = new_figure(1, 3 if var else 2, height=height, gridspec_kw={"wspace": 0.05})
        _draw_groups(panels[0], data["groups"])
        _draw_loss(panels[1], loss)
        if var:
            _draw_var(panels[2], var)
        panel_letters(panels, "cost of a set", "loss of a policy", "parts of Var")
        footnote(
            figure,
            "C = log p(set | revealed) − Σ log p(token | revealed). Grey: Σ H − max H, which bounds its mean "
            "over texts that the model writes.\nThin bars at C: mean range over the paths through a set. "
            "(c) is Var of the same path with one token per pass.",
        )
    return figure


def _aligned(rows: list[Mapping[str, Any]], loss: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the parts of Var in the row order of the loss; empty if no policy with sets has them."""
    by_order = {row["order"]: row for row in rows}
    found = [by_order[row["order"]] for row in loss]
    return found if any(is_drawable(row["inside"]) and centre(row["inside"]) > 0 for row in found) else []


def _draw_groups(panel: Axes, groups: list[Mapping[str, Any]]) -> None:
    places = range(len(groups))
    panel.plot(places, [centre(g["bound"]) for g in groups], "s--", color=_BOUND, label="entropy bound")
    for place, group in zip(places, groups, strict=True):
        below, above = error_lengths(group["coupling"])
        value, half = centre(group["coupling"]), centre(group["incoherence"]) / 2
        panel.errorbar(place, value, yerr=half, color=_COUPLING, elinewidth=0.7, capsize=2)
        panel.errorbar(place, value, yerr=[[below], [above]], fmt="o", color=_COUPLING, elinewidth=1.6)
    panel.plot([], [], "o", color=_COUPLING, label="coupling C")
    panel.axhline(0, color=GREY, linewidth=0.7)
    panel.set_yscale("symlog", linthresh=0.1)
    panel.set_xticks(places, [str(group["group"]) for group in groups])
    panel.set_xlabel("tokens in the set")
    panel.set_ylabel("nats per set")
    _legend(panel)


def _draw_loss(panel: Axes, rows: list[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        below, above = error_lengths(row["loss"])
        for name, shift, color in (("of_order", -0.18, _ORDER), ("of_coupling", 0.18, _COUPLING)):
            panel.barh(place + shift, centre(row[name]), height=0.32, color=color)
        panel.errorbar(
            centre(row["loss"]), place, xerr=[[below], [above]], fmt="|", color="black", elinewidth=0.9
        )
    panel.axvline(0, color=GREY, linewidth=0.7)
    panel.plot([], [], "s", color=_ORDER, label="order")
    panel.plot([], [], "s", color=_COUPLING, label="coupling")
    _rows(panel, rows)
    panel.set_xlabel("loss (nats/token); mark: total")
    _legend(panel)


def _draw_var(panel: Axes, rows: list[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        if not is_drawable(row["coupling_inside"]):
            panel.text(0, place, " not every set measured", va="center", fontsize=5.6, color=GREY)
            continue
        reach = {1: 0.0, -1: 0.0}
        for name, _, color in _VAR:
            value = centre(row[name])
            side = 1 if value >= 0 else -1
            panel.barh(place, value, left=reach[side], height=0.62, color=color)
            reach[side] += value
    for _, label, color in _VAR:
        panel.plot([], [], "s", color=color, label=label)
    panel.axvline(0, color=GREY, linewidth=0.7)
    _rows(panel, rows)
    panel.set_yticklabels([])
    panel.set_xlabel("Var (nats²)")
    _legend(panel)


def _legend(panel: Axes) -> None:
    """Put the legend above the panel, clear of the marks."""
    panel.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.15),
        ncols=2,
        fontsize=5.8,
        columnspacing=0.6,
        handlelength=1.6,
    )


def _rows(panel: Axes, rows: list[Mapping[str, Any]]) -> None:
    panel.set_yticks(range(len(rows)), [display_name(str(row["order"])) for row in rows], fontsize=6.6)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)


RECIPE = Recipe("Cost of committing several tokens per pass", data, draw)
