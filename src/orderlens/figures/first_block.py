"""The first block of every generated text, reveal by reveal: what the order pictures are made of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderlens.analysis.picked import picked_traces
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from orderlens.analysis.study import Study


@dataclass(frozen=True, slots=True)
class BlockPath:
    """Block 0 of one trace in reveal order, n reveals.

    Attributes:
        sample_id: whose text it is.
        order: the order's label.
        offsets: places counted from the block's first decoded position [n].
        tokens: revealed token ids [n].
        logq: their log-probabilities [n].
        eos: whether the token ends the text [n].
        special: whether it is a special token [n].
    """

    sample_id: str
    order: str
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
    frame = study.decoded
    if orders is not None:
        frame = frame[frame["order"].isin(list(orders))]
    keys = ["run", "task", "sample_id", "order"]
    chosen = frame.sort_values("seed", kind="stable").drop_duplicates(keys).sort_index()
    out = []
    columns = ["block", "position", "token_id", "logq"]
    for row, traces, rows in picked_traces(study.run, study.samples, chosen.index, columns):
        inside = traces.columns["block"][rows] == 0
        position = traces.columns["position"][rows][inside]
        eos, content = traces.eos[rows][inside], traces.content[rows][inside]
        out.append(
            BlockPath(
                str(chosen.loc[row, "sample_id"]),
                str(chosen.loc[row, "order"]),
                position - position.min() if len(position) else position,
                traces.columns["token_id"][rows][inside],
                traces.columns["logq"][rows][inside].astype(np.float64),
                eos,
                ~eos & ~content,
            )
        )
    return [item for item in out if len(item.offsets)]
