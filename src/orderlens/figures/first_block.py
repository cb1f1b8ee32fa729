"""One block of every generated text, reveal by reveal: what the order pictures are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderlens.analysis.picked import picked_traces
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from orderlens.analysis.study import Study


@dataclass(frozen=True, slots=True)
class BlockPath:
    """One block of one trace in reveal order, n reveals.

    Attributes:
        sample_id: whose text it is.
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
    for row, traces, rows in picked_traces(study.run, study.every, chosen.index, columns):
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
