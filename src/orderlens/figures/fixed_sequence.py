"""Fixed targets: orders by mean log q and Var (Fig. 1a), Lorenz curves (Fig. 1b), dependence on the order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.analysis import paper
from orderlens.analysis.coherence import Circulation, measure_coherence
from orderlens.analysis.frames import mean_difference, side_by_side
from orderlens.analysis.tables_fixed import first_block_curves, order_plane
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    OrderStyle,
    centre,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    order_style,
    order_styles,
    panel_letters,
    point,
    power_of_ten,
    raised,
    real,
    row_labels,
    rows,
    short,
)
from orderlens.metrics.coherence import tied_ranks
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.segments import FloatArray
from orderlens.rules.cards import display_name, in_paper_order, is_random, is_target_aware, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study


COLUMNS = ("mean", "var", "gini_block0", "argmax_accuracy")
"""The statistics of the figure."""


def data(study: Study) -> dict[str, Any]:
    """Return per order the four statistics with intervals, by rising Var, and each random seed's means."""
    if not len(study.scored):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    points: list[dict[str, Any]] = []
    for row in order_plane(study):
        cells = {name: interval(row[name]) for name in COLUMNS}
        if is_drawable(cells["mean"]) and is_drawable(cells["var"]):
            points.append({"order": row["order"], "kind": row["kind"], "n": row["n"], **cells})
    points.sort(key=lambda item: (item["var"]["value"], item["order"]))
    drawn = study.scored[study.scored["order"].map(lambda order: is_random(str(order)))]
    seeds = drawn.groupby(["order", "seed"])[["mean", "var"]].mean().reset_index()
    return {
        "points": points,
        "random_seeds": seeds.to_dict("records") if len(seeds) > 1 else [],
        "spearman_var_mean": {"all": _rho(points), "paper_six": _rho(points, paper.orders("fixed-sequence"))},
        "n_sequences": int(study.scored["prompt"].nunique()),
    }


def _rho(points: list[dict[str, Any]], wanted: tuple[str, ...] | None = None) -> float:
    used = [item for item in points if wanted is None or item["order"] in wanted]
    if wanted is not None and len(used) < len(wanted):
        return float("nan")
    var, mean = ([item[name]["value"] for item in used] for name in ("var", "mean"))
    return rank_correlation(var, tied_ranks(mean))


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the plane and two columns of dots; the dots' row labels are the legend."""
    with look():
        count = len(data["points"])
        figure, panels = new_figure(
            1, 3, height=max(2.5, 0.5 + 0.26 * count), gridspec_kw={"width_ratios": [2.1, 1, 1]}
        )
        _plane(panels[0], data)
        orders = [item["order"] for item in data["points"]]
        hollow = [item["kind"] == "target-aware" for item in data["points"]]
        for panel, name, title in zip(
            panels[1:], COLUMNS[2:], ("Gini, block 0", "argmax accuracy"), strict=True
        ):
            rows(panel, orders, [item[name] for item in data["points"]], hollow)
            panel.set_xlabel(title)
        row_labels(panels[1], orders)
        panels[2].set_yticks(range(count), [""] * count)
        panel_letters(panels, "variance against mean", "inequality", "accuracy")
        footnote(figure, _note(data))
    return figure


def _plane(panel: Axes, data: Mapping[str, Any]) -> None:
    styles = order_styles(item["order"] for item in data["points"])
    for item in data["random_seeds"]:
        order = item.get("order", "random")
        look_of_random = styles.get(order) or order_style(order)
        panel.plot(
            real(item["mean"]),
            real(item["var"]),
            linestyle="none",
            marker=look_of_random.marker,
            color=look_of_random.color,
            alpha=0.35,
            markersize=3.2,
            markeredgewidth=0,
        )
    for item in data["points"]:
        style, hollow = styles[item["order"]], item["kind"] == "target-aware"
        point(panel, style, item["mean"], item["var"], hollow=hollow)
    panel.set_xlabel("mean log q of the target (nats per token)")
    panel.set_ylabel("Var(log q) (nats²)")
    panel.margins(0.08)
    panel.locator_params(axis="x", nbins=5)  # more labels of four digits would touch


def _note(data: Mapping[str, Any]) -> str:
    rho = data["spearman_var_mean"]
    parts = [f"Spearman ρ(Var, mean) = {short(rho['all'])} over {len(data['points'])} orders"]
    if is_drawable({"value": rho["paper_six"]}):
        parts.append(f"{short(rho['paper_six'])} over the paper's six")
    text = ", ".join(parts) + f"; n = {data['n_sequences']} sequences, bars: 95 % intervals."
    if any(item["kind"] == "target-aware" for item in data["points"]):
        text += "\nHollow: the order sees the target, so its sum of log q is not a likelihood."
    return text


RECIPE = Recipe("Variance against mean log q per order (Fig. 1a)", data, draw, "score")


def draw_lorenz(data: Mapping[str, Any]) -> Figure:
    """Draw the Lorenz curves (left) and their distance below the diagonal (right)."""
    with look():
        figure, (whole, depth) = new_figure(1, 2, height=2.9)
        steps = np.linspace(0, 1, data["length"] + 1)
        whole.plot([0, 1], [0, 1], color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        depth.axhline(0, color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        styles = order_styles(item["order"] for item in data["curves"])
        for place, item in enumerate(data["curves"]):
            style = styles[item["order"]]
            heights = np.array([real(value) for value in item["lorenz"]])
            _lorenz_curve(whole, item, style, steps, heights, place)
            _lorenz_curve(depth, item, style, steps, steps - heights, place)
        whole.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        whole.set_ylabel("share of −Σ log q")
        depth.set(xlim=(0, 1), box_aspect=1)
        depth.set_ylabel("distance below uniform")
        for panel in (whole, depth):
            panel.set_xlabel("share of steps, easiest first")
        panel_letters([whole, depth], "Lorenz curves", "depth of the curves")
        figure.legend(*whole.get_legend_handles_labels(), loc="outside right center", title="order (Gini)")
        n = max(item["n"] for item in data["curves"])
        text = f"Block 0 ({data['length']} steps), mean of up to {n} curves per order; dashed: uniform."
        if data["n_other_lengths"]:
            text += f"\nLeft out: {data['n_other_lengths']} blocks of other lengths."
        footnote(figure, text)
    return figure


def _lorenz_curve(
    panel: Axes,
    item: Mapping[str, Any],
    style: OrderStyle,
    steps: FloatArray,
    heights: FloatArray,
    place: int,
) -> None:
    spacing = max(len(steps) // 4, 1)
    panel.plot(
        steps,
        heights,
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markevery=(place % spacing, spacing),
        linewidth=1.2,
        markersize=4.0,
        label=f"{display_name(item['order'])} ({short(item['gini'], 3)})",
        markerfacecolor="white" if item["kind"] == "target-aware" else style.color,
    )


LORENZ = Recipe(
    "Lorenz curves of self-information in block 0 (Fig. 1b)", first_block_curves, draw_lorenz, "score"
)


REFERENCE = "forced-ar"
MIN_PAIRS = 4
"""Swaps below which a group is not drawn (the table still shows it)."""
_LINE = "#1a273f"
_QUARTERS = {"0.25": "¼", "0.5": "½", "0.75": "¾"}


def coherence_data(study: Study) -> dict[str, Any]:
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


def draw_coherence(data: Mapping[str, Any]) -> Figure:
    """Draw the paired gaps and, when it was measured, the circulation by distance and by mask ratio."""
    with look():
        wide = bool(data["circulation"])
        shape = {"width_ratios": [1.5, 1, 0.8]} if wide else {}
        count = len(data["gaps"])
        figure, panels = new_figure(
            1, 3 if wide else 1, height=max(2.5, 0.8 + 0.24 * count), gridspec_kw=shape
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
        footnote(figure, _coherence_note(data, floor))
    return figure


def _draw_gaps(panel: Axes, data: Mapping[str, Any], floor: float) -> None:
    orders = [item["order"] for item in data["gaps"]]
    hollow = [item["kind"] == "target-aware" for item in data["gaps"]]
    if math.isfinite(floor):
        panel.axvspan(-floor, floor, color="#d9d9d9", linewidth=0)
    panel.axvline(0, color=GREY, linewidth=0.8)
    rows(panel, orders, [item["gap"] for item in data["gaps"]], hollow)
    row_labels(panel, orders)
    power, unit = math.floor(math.log10(max(map(abs, panel.get_xlim())))), ""
    if power < -4:  # matplotlib would write the power of ten over the label
        unit = f"10{raised(power)} "
        panel.xaxis.set_major_formatter(lambda value, _: f"{value / 10.0**power:g}".replace("-", "−"))
    panel.set_xlabel(f"Δ mean log q to forced-ar ({unit}nats/token)")


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


def _coherence_note(data: Mapping[str, Any], floor: float) -> str:
    parts = []
    for name, title in (("range_of_means", "range of means"), ("mean_of_ranges", "mean of ranges")):
        cells = {item["scope"]: item for item in data["statistics"] if item["statistic"] == name}
        values = [f"{scope} {_shown(cell)}" for scope, cell in cells.items() if is_drawable(cell)]
        parts.append(f"{title}: {', '.join(values) + ' nats per token' if values else 'undefined'}")
    measured = (
        f"{power_of_ten(floor)} nats per token{_seen(data, floor)}"
        if math.isfinite(floor)
        else "not measured"
    )
    measured = "exactly 0" if floor == 0 else measured
    parts.append(f"noise floor: {measured}; n = {data['n_sequences']} sequences")
    return "\n".join(parts) + ". Hollow: the order sees the target, so its sum of log q is not a likelihood."


def _seen(data: Mapping[str, Any], floor: float) -> str:
    """Return how the noise floor is drawn: a band, unless that is thinner than the line at 0."""
    widest = max((abs(centre(item["gap"])) for item in data["gaps"]), default=0.0)
    return " (grey band)" if floor > widest / 100 else " (thinner than the line at 0)"


def _shown(cell: Mapping[str, Any]) -> str:
    value = centre(cell)
    return f"{value:.3f}" if abs(value) >= 5e-4 else power_of_ten(value)


COHERENCE = Recipe(
    "Dependence of log P on the order, compared with the noise floor", coherence_data, draw_coherence, "score"
)
