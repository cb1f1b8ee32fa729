"""Positions that each order reveals at each step of block 0, as heat maps, and closeness to left-to-right.

``first_blocks`` and ``ending_blocks`` read one block of every generated text, reveal by reveal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.analysis.tables_generation import path_shapes
from orderlens.analysis.traces import picked_traces
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import footnote, interval, look, new_figure, real, short
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray
from orderlens.rules.cards import display_name, in_paper_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study


@dataclass(frozen=True, slots=True)
class BlockPath:
    """One block of one trace in reveal order, n reveals.

    Attributes:
        sample_id: id of the text.
        order: the order's label.
        block: which block, from 0.
        offsets: places counted from the block's first decoded position [n].
        tokens: revealed token ids [n].
        logq: their log-probabilities [n].
        eos: whether the token ends the text [n].
        special: whether it is a special token [n].
    """

    sample_id: str
    order: str
    block: int
    offsets: IntArray
    tokens: IntArray
    logq: FloatArray
    eos: BoolArray
    special: BoolArray

    @property
    def content(self) -> BoolArray:
        """Neither EOS nor special [n]."""
        return ~(self.eos | self.special)


def first_blocks(study: Study, orders: Collection[str] | None = None) -> list[BlockPath]:
    """Return block 0 of the texts decoded at the study's temperature, the first seed of each order."""
    return _blocks(study, orders, lambda _block, _eos: 0)


def ending_blocks(study: Study, orders: Collection[str] | None = None) -> list[BlockPath]:
    """Return the first block that holds an EOS, of the texts that have one."""
    return _blocks(study, orders, lambda block, eos: int(block[eos].min()) if eos.any() else None)


def _blocks(
    study: Study, orders: Collection[str] | None, which: Callable[[IntArray, BoolArray], int | None]
) -> list[BlockPath]:
    frame = study.decoded
    if orders is not None:
        frame = frame[frame["order"].isin(list(orders))]
    keys = ["prompt", "order"]
    chosen = frame.sort_values("seed", kind="stable").drop_duplicates(keys).sort_index()
    out = []
    columns = ["block", "position", "token_id", "logq"]
    for row, traces, rows in picked_traces(study.run, study.all_traces, chosen.index, columns):
        found = {name: traces.columns[name][rows] for name in columns}
        wanted = which(found["block"], traces.eos[rows])
        inside = found["block"] == wanted
        if wanted is None or not inside.any():
            continue
        eos, content, position = (
            traces.eos[rows][inside],
            traces.content[rows][inside],
            found["position"][inside],
        )
        out.append(
            BlockPath(
                str(chosen.loc[row, "sample_id"]),
                str(chosen.loc[row, "order"]),
                wanted,
                position - position.min(),
                found["token_id"][inside],
                found["logq"][inside].astype(np.float64),
                eos,
                ~eos & ~content,
            )
        )
    return out


SHAPES = ("spearman_l2r_block0", "local_arness_block0", "global_arness_block0", "concordance_block0")
ORDERS_PER_ROW = 4
"""Maximum number of orders side by side; the headings of more would overlap."""
_KINDS = (("content_share", "Blues", "content"), ("eos_share", "Purples", "EOS"))


def data(study: Study) -> dict[str, Any]:
    """Return per order the share of texts that reveal each place at each step, and its shape statistics."""
    paths = first_blocks(study)
    if not paths:
        raise UndefinedFigureError("nothing was generated: the run holds no decoded paths")
    shapes = {str(row["order"]): row for row in path_shapes(study)}
    width = int(max(path.offsets.max() for path in paths)) + 1
    maps = []
    for order in in_paper_order(path.order for path in paths):
        mine = [path for path in paths if path.order == order]
        maps.append(
            {
                "order": order,
                "n": len(mine),
                "content_share": _share(mine, [path.content for path in mine], width),
                "eos_share": _share(mine, [path.eos for path in mine], width),
                **{name: interval(shapes[order][name]) for name in SHAPES},
            }
        )
    return {"width": width, "temperature": study.temperature, "maps": maps}


def _share(paths: Sequence[BlockPath], flags: Sequence[BoolArray], width: int) -> FloatArray:
    """Return the share of paths with a flagged reveal of each place (column) at each step (row) [W, W]."""
    counts = np.zeros((width, width))
    for path, flag in zip(paths, flags, strict=True):
        counts[np.flatnonzero(flag), path.offsets[flag]] += 1
    return counts / len(paths)


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw one column per order, four side by side; a second row for EOS reveals when there are any."""
    with look():
        kinds = [kind for kind in _KINDS if _any(data, kind[0])]
        maps, columns = data["maps"], min(len(data["maps"]), ORDERS_PER_ROW)
        bands = [maps[first : first + columns] for first in range(0, len(maps), columns)]
        rows = len(kinds) * len(bands)
        figure, panels = new_figure(
            rows, columns, height=1.05 + 1.55 * rows + 0.3 * (len(bands) - 1), sharex=True, sharey=True
        )
        lines = [panels[row * columns : (row + 1) * columns] for row in range(rows)]
        for place, band in enumerate(bands):
            mine = lines[place * len(kinds) : (place + 1) * len(kinds)]
            for line, kind in zip(mine, kinds, strict=True):
                _draw_line(figure, line, band, kind, data["width"])
            for panel, item in zip(mine[0], band, strict=False):
                panel.set_title(_heading(item), fontsize=7.4, linespacing=1.3)
            for panel, _ in zip(mine[-1], band, strict=False):
                panel.set_xlabel("place in the block")
                panel.tick_params(labelbottom=True)
        footnote(figure, _note(data))
        figure.draw_without_rendering()  # the layout of square panels settles in the second round
    return figure


def _draw_line(
    figure: Figure, line: Sequence[Axes], band: Sequence[Mapping[str, Any]], kind: tuple[str, ...], width: int
) -> None:
    """Draw the shares of one kind of token for the orders of a band; unused panels stay empty."""
    name, cmap, label = kind
    for panel, item in zip(line, band, strict=False):
        image = _heat(panel, np.array(item[name], np.float64), cmap, width)
    for panel in line[len(band) :]:
        panel.set_axis_off()
    bar = figure.colorbar(image, ax=list(line), shrink=0.85, aspect=14, pad=0.02)
    bar.set_label(f"share of texts, {label}", fontsize=6.8)
    bar.outline.set_linewidth(0.5)
    line[0].set_ylabel("reveal step")


def _any(data: Mapping[str, Any], name: str) -> bool:
    return any(np.array(item[name], np.float64).any() for item in data["maps"])


def _heat(panel: Axes, share: FloatArray, cmap: str, width: int) -> Any:
    from matplotlib.colors import PowerNorm

    panel.plot([0.5, width + 0.5], [0.5, width + 0.5], color="#9a9a9a", linewidth=0.5)
    image = panel.imshow(
        np.ma.masked_equal(share, 0.0),
        cmap=cmap,
        norm=PowerNorm(0.5, 0.0, 1.0),
        extent=(0.5, width + 0.5, width + 0.5, 0.5),
        interpolation="nearest",
        zorder=2,
    )
    ticks = [1, *range(8, width + 1, 8)]
    panel.set_xticks(ticks)
    panel.set_yticks(ticks)
    panel.grid(visible=False)
    return image


def _heading(item: Mapping[str, Any]) -> str:
    rho = item["spearman_l2r_block0"]
    ends = f" [{short(rho['low'])}, {short(rho['high'])}]" if real(rho["low"]) == real(rho["low"]) else ""
    arness = f"local {_of(item, 'local')}, global {_of(item, 'global')}"
    return f"{display_name(item['order'])}\nρ = {short(rho['value'])}{ends}\n{arness}"


def _of(item: Mapping[str, Any], kind: str) -> str:
    return short(item[f"{kind}_arness_block0"]["value"])


def _note(data: Mapping[str, Any]) -> str:
    n = max(item["n"] for item in data["maps"])
    harmonic = float(np.sum(1 / np.arange(1, data["width"] + 1)) / data["width"])
    return (
        f"Block 0 of {n} texts per order at T = {real(data['temperature']):g}; grey line: left to right. "
        f"ρ: Spearman of place and step on content reveals.\n"
        "Local: AR-ness@1 as steps to the next place; global: as reveals of the leftmost mask "
        f"({short(harmonic)} for a random order). The two are not comparable."
    )


RECIPE = Recipe("Positions revealed at each step of block 0, per order", data, draw, "generate")
