"""Top probability and entropy of every masked position in every pass, as two codes of 2 bytes.

A decoder with a ``StateRecorder`` requests all masked positions of each block, also under static orders, and
adds one row per chain and pass. Without a recorder nothing here is called. ``runs.tables`` writes the table
``states``; ``analysis.traces`` reads it.

Shape letters: C chains of a pass, B block size, R masked positions, sorted by chain, then left to right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.passes import BoolArray, Columns
from orderlens.models.protocol import IntArray
from orderlens.rules.stats import PositionStats
from orderlens.store.schema import ENTROPY_UNITS, TOP_UNITS


class StateRecorder:
    """Collects the states of a unit.

    Attributes:
        passes: one mapping per ``add``: columns of the chains [C], ``visible`` [C, B], ``count`` [C] and the
            codes ``top`` and ``entropy`` [R].
    """

    def __init__(self) -> None:
        self.passes: list[dict[str, NDArray[Any]]] = []

    def add(self, chains: Columns, visible_CB: BoolArray, chain_R: IntArray, stats: PositionStats) -> None:
        """Add one pass.

        Args:
            chains: columns that name each chain and pass [C].
            visible_CB: positions of the block that hold a token.
            chain_R: chain of each masked position.
            stats: statistics of the masked positions [R].
        """
        top_R, entropy_R = np.exp(stats.top_logprob) * TOP_UNITS, stats.entropy * ENTROPY_UNITS
        codes = {"top": _code(top_R), "entropy": _code(entropy_R)}
        count_C = np.bincount(chain_R, minlength=len(visible_CB))
        self.passes.append({**chains, "visible": visible_CB, "count": count_C, **codes})

    def columns(self, limit: int) -> Columns:
        """Return the rows sorted by sample, order and pass, with all codes in the same sequence.

        ``limit`` is the maximum number of masked positions per trace; the passes after it are left out.
        """
        rows = {name: np.concatenate([part[name] for part in self.passes]) for name in self.passes[0]}
        codes = {name: rows.pop(name) for name in ("top", "entropy")}
        first = np.cumsum(rows["count"]) - rows["count"]
        by = np.lexsort((rows["forward"], rows["order"], rows["sample"]))
        rows = {name: values[by] for name, values in rows.items()}
        total, first = np.cumsum(rows["count"]), first[by]
        new = np.ones(len(by), bool)
        new[1:] = (np.diff(rows["sample"]) != 0) | (np.diff(rows["order"]) != 0)
        before = (total - rows["count"])[new][np.cumsum(new) - 1]
        kept = (total - before <= limit) & (rows["count"] > 0)
        rows = {name: values[kept] for name, values in rows.items()}
        count, end = rows["count"], np.cumsum(rows["count"])
        place = np.repeat(first[kept] - end + count, count) + np.arange(int(count.sum()))
        return rows | {name: values[place] for name, values in codes.items()}


def _code(value_R: NDArray[np.float64]) -> NDArray[np.uint16]:
    return np.clip(np.rint(value_R), 0, 0xFFFF).astype(np.uint16)
