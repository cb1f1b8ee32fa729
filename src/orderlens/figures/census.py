"""All orders of a span: their distribution with the rules on it, log P against Var, the lattice of states.

Single spans are shown for the span whose range is the median of all, so that it is typical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.analysis.census import Census, RulePath
from orderlens.analysis.table import NO_CENSUS, has_census
from orderlens.analysis.tables_census import census as census_table
from orderlens.analysis.tables_census import census_frames
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    centre,
    error_bars,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    order_styles,
    panel_letters,
)
from orderlens.metrics.census import SpanCensus
from orderlens.metrics.census_front import front, least_variance
from orderlens.metrics.census_sets import count_bits
from orderlens.rules.cards import display_name
from orderlens.rules.policy import spec_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

BINS = 48
LARGEST_LATTICE = 8
"""Positions up to which the lattice is drawn: 256 states."""
_BEST, _WORST = "#195e33", "#ac530f"


def data(study: Study) -> dict[str, Any]:
    """Return one span's distribution, front and rules, and every rule's rank over all spans."""
    census, text, start = _typical(study)
    span = census.span(text, start)
    edges, share = span.distribution(BINS)
    return {
        "sample_id": text,
        "start": start,
        "size": span.size,
        "edges": (edges / span.size).tolist(),
        "share": share.tolist(),
        "mean": span.mean / span.size,
        "points": [_point(path, span.size) for path in census.paths(text, start)],
        "front": [{"mean": path.log_p / span.size, "var": path.var} for path in front(span)],
        "least_var": least_variance(span).var,
        "ranks": [
            {"order": row["order"], "rank": interval(row["share_worse"])}
            for row in census_table(study)[0].rows
        ],
    }


def _typical(study: Study) -> tuple[Census, str, int]:
    """Return the span whose range is the median, with its census."""
    if not has_census(study):
        raise UndefinedFigureError(NO_CENSUS)
    spans = study.shared(census_frames).spans
    place = spans["range_each"].argsort(kind="stable").iloc[len(spans) // 2]
    row = spans.iloc[int(place)]
    return Census(study.run.only([row["run"]])), str(row["sample_id"]), int(row["start"])


def _point(path: RulePath, size: int) -> dict[str, Any]:
    order = path.order if path.seed in (None, 0) else spec_of(path.order, path.seed)
    return {"order": order, "mean": float(path.log_q.sum()) / size, "var": float(path.log_q.var())}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the distribution, the plane of log P and Var, and the ranks."""
    with look():
        ranks = [row for row in data["ranks"] if is_drawable(row["rank"])]
        height = max(2.6, 1.0 + 0.2 * len(ranks))
        figure, panels = new_figure(1, 3, height=height, gridspec_kw={"width_ratios": (1.1, 1, 1)})
        styles = order_styles({*(row["order"] for row in data["points"]), *(row["order"] for row in ranks)})
        _draw_histogram(panels[0], data, styles)
        _draw_plane(panels[1], data, styles)
        _draw_ranks(panels[2], ranks, styles)
        panel_letters(panels, "all orders of a span", "Var against log P", "rank of each rule")
        footnote(
            figure,
            f"(a), (b): all {data['size']}! orders of one span ('{data['sample_id']}', start "
            f"{data['start']}), whose range is the median.\nLine in (b): orders that no mixture of both "
            "goals beats. (c): mean over all spans.",
        )
    return figure


def _draw_histogram(panel: Axes, data: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    edges, share = np.asarray(data["edges"]), np.asarray(data["share"])
    wide = edges[-1] - edges[0] > 1e-9
    if wide:
        panel.stairs(share, edges, fill=True, color="#c9d3e6")
    top = float(share.max()) if wide else 1.0
    for row in data["points"]:
        style = styles[row["order"]]
        panel.plot(row["mean"], 0.04 * top, marker=style.marker, color=style.color, linestyle="none")
    panel.axvline(data["mean"], color=GREY, linewidth=0.8, linestyle="--")
    panel.set_ylim(0, 1.1 * top)
    panel.set_xlabel("log P per token (nats)")
    panel.set_ylabel("share of all orders")


def _draw_plane(panel: Axes, data: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    panel.plot(
        [p["mean"] for p in data["front"]], [p["var"] for p in data["front"]], ".-", color=_BEST, linewidth=1
    )
    for row in data["points"]:
        style = styles[row["order"]]
        panel.plot(row["mean"], row["var"], marker=style.marker, color=style.color, linestyle="none")
    panel.axvline(data["mean"], color=GREY, linewidth=0.8, linestyle="--")
    panel.set_xlabel("log P per token (nats)")
    panel.set_ylabel("Var(log q) (nats²)")


def _draw_ranks(panel: Axes, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, Any]) -> None:
    if not rows:
        panel.text(0.5, 0.5, "undefined: all orders\nhave the same log P", ha="center", va="center")
        panel.set_axis_off()
        return
    for place, row in enumerate(rows):
        style = styles[row["order"]]
        panel.errorbar(
            centre(row["rank"]),
            place,
            xerr=error_bars([row["rank"]]),
            linestyle="none",
            marker=style.marker,
            color=style.color,
            elinewidth=0.9,
        )
    panel.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    panel.set_xlim(-0.03, 1.03)
    panel.set_yticks(range(len(rows)), [display_name(str(row["order"])) for row in rows], fontsize=6.6)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.set_xlabel("share of orders below")


RECIPE = Recipe("Rules among all orders of a span", data, draw, traces="census")


def lattice_data(study: Study) -> dict[str, Any]:
    """Return the states of one span and the sets that the best, the worst and one rule's order pass."""
    census, text, start = _typical(study)
    span = census.span(text, start)
    if span.size > LARGEST_LATTICE:
        raise UndefinedFigureError(
            f"the lattice is drawn up to {LARGEST_LATTICE} positions, the span has {span.size}; use --span 6"
        )
    paths: list[tuple[str, Sequence[int]]] = [("best", span.best.order), ("worst", span.worst.order)]
    single = [path for path in census.paths(text, start) if all(len(found) == 1 for found in path.sets)]
    paths += [(path.order, [found[0] for found in path.sets]) for path in single[:1]]
    return {
        "sample_id": text,
        "start": start,
        "size": span.size,
        "paths": [_path(span, name, order) for name, order in paths],
    }


def _path(span: SpanCensus, name: str, order: Sequence[int]) -> dict[str, Any]:
    sets = np.append(0, np.cumsum(1 << np.asarray(order)))
    return {"name": name, "sets": sets.tolist(), "log_p": span.path(order).log_p}


def draw_lattice(data: Mapping[str, Any]) -> Figure:
    """Draw every state, by number of revealed positions, and the paths."""
    size = int(data["size"])
    sets = np.arange(2**size)
    x, y = count_bits(sets), _heights(size)
    with look():
        figure, (panel,) = new_figure(height=3.2)
        if size <= 6:
            for i in range(size):
                free = sets[(sets >> i) & 1 == 0]
                panel.plot(
                    [x[free], x[free | 1 << i]], [y[free], y[free | 1 << i]], color="#ececec", linewidth=0.5
                )
        panel.plot(x, y, ".", color=GREY, markersize=2.5)
        colors = (_BEST, _WORST, "#1a273f")
        for path, color, line in zip(data["paths"], colors, ("-", "--", ":"), strict=False):
            label = f"{display_name(str(path['name']))}: {path['log_p']:.2f}"
            panel.plot(x[path["sets"]], y[path["sets"]], color=color, linestyle=line, marker="o", label=label)
        panel.set_xlabel("revealed positions")
        panel.set_ylabel("states, leftmost positions first")
        panel.set_yticks([])
        panel.grid(visible=False)
        panel.set_title(f"log P (nats) of {size}! orders through {2**size - 1} states", loc="left")
        panel.legend(loc="upper left")
        panel_letters([panel])
    return figure


def _heights(size: int) -> np.ndarray[Any, Any]:
    """Return a height per set: sets of one size evenly spread, those with early positions on top."""
    sets = np.arange(2**size)
    backwards = np.array([int(f"{number:0{size}b}"[::-1], 2) for number in sets])
    count = count_bits(sets)
    height = np.zeros(len(sets))
    for level in range(size + 1):
        own = np.flatnonzero(count == level)
        ranked = own[np.argsort(backwards[own])]
        height[ranked] = np.arange(len(own)) - (len(own) - 1) / 2
    return height


LATTICE = Recipe("The states of a span and paths through them", lattice_data, draw_lattice, traces="census")
