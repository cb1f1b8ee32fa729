"""Coherence: dependence of log P/n on the order, compared with the numerical noise floor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.analysis.coherence import Circulation, measure_coherence
from orderlens.analysis.compare import mean_difference
from orderlens.analysis.frames import side_by_side
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    centre,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    panel_letters,
    real,
    row_labels,
    rows,
)
from orderlens.rules.cards import in_paper_order, is_target_aware, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

REFERENCE = "forced-ar"
MIN_PAIRS = 4
"""Swaps below which a group is not drawn (the table still shows it)."""
_LINE = "#1a273f"
_QUARTERS = {"0.25": "¼", "0.5": "½", "0.75": "¾"}


def data(study: Study) -> dict[str, Any]:
    """Return each order's mean log q against the reference order's, the ranges, Γ and the noise floor."""
    if not len(study.scored):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    found = study.shared(measure_coherence)
    return {
        "reference": REFERENCE,
        "gaps": _gaps(study),
        "statistics": [
            {"statistic": item.name, "scope": item.scope, **interval(item.value)} for item in found.statistics
        ],
        "noise_floor": found.noise_floor,
        "circulation": [_swaps(item) for item in found.circulation if item.rms.is_defined],
        "n_sequences": int(study.scored["prompt"].nunique()),
    }


def _gaps(study: Study) -> list[dict[str, Any]]:
    wide = side_by_side(study.one_token_per_pass, "mean")
    if REFERENCE not in wide.columns:
        return []
    others = [order for order in in_paper_order(wide.columns) if order != REFERENCE]
    found = []
    for order in sorted(others, key=is_target_aware):
        cell = mean_difference(
            wide[order] - wide[REFERENCE], study.options.resampling, "no sequence under both orders"
        )
        found.append({"order": order, "kind": kind_of(order), "gap": interval(cell)})
    return found


def _swaps(item: Circulation) -> dict[str, Any]:
    values = {name: interval(getattr(item, name)) for name in ("median_abs", "rms", "signed_mean")}
    return {"group": item.group, "n": item.n, **values}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the paired gaps and, when it was measured, the circulation by distance and by mask ratio."""
    with look():
        wide = bool(data["circulation"])
        shape = {"width_ratios": [1.5, 1, 0.8]} if wide else {}
        count = len(data["gaps"])
        figure, panels = new_figure(
            1,
            3 if wide else 1,
            height=max(2.5, 0.8 + 0.24 * count),
            width=6.8 if wide else 3.8,
            gridspec_kw=shape,
        )
        floor = real(data["noise_floor"])
        _draw_gaps(panels[0], data, floor)
        if wide:
            _draw_groups(panels[1], data, "distance", "distance of the pair")
            _draw_groups(panels[2], data, "mask ratio", "masked share")
            panels[1].set_ylabel("|Γ| (nats)")
            top = max(panel.get_ylim()[1] for panel in panels[1:])
            for panel in panels[1:]:
                panel.set_ylim(0, top)
            panels[1].legend(loc="best")
            panel_letters(panels, "gap between orders", "circulation", "circulation")
        footnote(figure, _note(data, floor))
    return figure


def _draw_gaps(panel: Axes, data: Mapping[str, Any], floor: float) -> None:
    orders = [item["order"] for item in data["gaps"]]
    hollow = [item["kind"] == "target-aware" for item in data["gaps"]]
    if math.isfinite(floor):
        panel.axvspan(-floor, floor, color="#d9d9d9", linewidth=0)
    panel.axvline(0, color=GREY, linewidth=0.8)
    rows(panel, orders, [item["gap"] for item in data["gaps"]], hollow)
    row_labels(panel, orders)
    panel.set_xlabel("Δ mean log q to forced-ar (nats/token)")


def _draw_groups(panel: Axes, data: Mapping[str, Any], kind: str, label: str) -> None:
    mine = [item for item in data["circulation"] if item["group"].startswith(f"{kind} ")]
    found = [item for item in mine if item["n"] >= MIN_PAIRS]
    names = [_bin_label(item["group"].removeprefix(f"{kind} "), whole=kind == "distance") for item in found]
    places = range(len(found))
    panel.plot(places, _values(found, "rms"), "s--", color=_LINE, markersize=3.8, label="RMS")
    panel.plot(places, _values(found, "median_abs"), "o-", color="#ac530f", markersize=4.2, label="median")
    panel.set_xticks(places, names, fontsize=6.6)
    panel.set_xlim(-0.4, max(len(found) - 0.6, 0.4))
    panel.set_xlabel(label)


def _values(found: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [centre(item[name]) for item in found]


def _bin_label(text: str, *, whole: bool) -> str:
    """Return ``[3, 5)`` as ``3–4`` for whole numbers, ``[0.25, 0.5)`` as ``¼–½`` otherwise."""
    low, high = text.strip("[])").split(", ")
    if not whole:
        return f"{_QUARTERS.get(low, low)}–{_QUARTERS.get(high, high)}"
    if not high.isdigit():
        return f"≥{low}"
    last = int(high) - 1 if text.endswith(")") else int(high)
    return low if last <= int(low) else f"{low}–{last}"


def _note(data: Mapping[str, Any], floor: float) -> str:
    parts = []
    for name in ("range_of_means", "mean_of_ranges"):
        cells = {item["scope"]: item for item in data["statistics"] if item["statistic"] == name}
        values = [f"{scope} {_shown(cell)}" for scope, cell in cells.items() if is_drawable(cell)]
        parts.append(f"{name}: {', '.join(values) or 'undefined'}")
    measured = f"{floor:.1e} nats per token{_seen(data, floor)}" if math.isfinite(floor) else "not measured"
    measured = "exactly 0" if floor == 0 else measured
    parts.append(f"noise floor: {measured}; n = {data['n_sequences']} sequences")
    return "\n".join(parts) + ". Hollow: the order sees the target, so its sum of log q is not a likelihood."


def _seen(data: Mapping[str, Any], floor: float) -> str:
    """Return how the noise floor is drawn: a band, unless that is thinner than the line at 0."""
    widest = max((abs(centre(item["gap"])) for item in data["gaps"]), default=0.0)
    return " (grey band)" if floor > widest / 100 else " (thinner than the line at 0)"


def _shown(cell: Mapping[str, Any]) -> str:
    value = centre(cell)
    return f"{value:.3f}" if abs(value) >= 5e-4 else f"{value:.1e}"


RECIPE = Recipe("Dependence of log P on the order, compared with the noise floor", data, draw, "score")
