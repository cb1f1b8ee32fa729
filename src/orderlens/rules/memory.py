"""What a rule remembers from one forward pass to the next, kept per chain by name.

A rule writes one value per masked position (``keep_rows``) or one per chain (``keep_chains``) and finds them
again at the next pass of the same chain and block, whatever else shares the batch by then. Every block starts
with nothing remembered, because a fixed text is scored with all its blocks side by side.

Shape letters: N chains of a call, C chains in this pass, R masked positions in this pass, B block size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
Values = NDArray[Any]


class MemoryTable:
    """The memory of one rule over all chains of a call: arrays [N, B, …] and [N, …] by name."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = (n_chains, block_size)
        self._rows: dict[str, tuple[Values, Values]] = {}
        self._chains: dict[str, tuple[Values, Values]] = {}

    def at(self, chain_C: IntArray, chain_R: IntArray, offset_R: IntArray) -> Memory:
        """Return what the rule sees of it in one pass.

        Args:
            chain_C: index of each chain of the pass in this table.
            chain_R: chain of each masked position, as a place in ``chain_C``.
            offset_R: its offset in the block.
        """
        return Memory(self, chain_C, chain_C[chain_R], offset_R)

    def forget(self, chains: IntArray) -> None:
        """Start the given chains afresh: they enter a new block."""
        for default, values in (*self._rows.values(), *self._chains.values()):
            values[chains] = default

    def rows(self, name: str, default: ArrayLike) -> Values:
        """Return the array [N, B, …] called ``name``, made of ``default`` at its first use."""
        return _found(self._rows, name, default, self._shape)

    def chains(self, name: str, default: ArrayLike) -> Values:
        """Return the array [N, …] called ``name``, made of ``default`` at its first use."""
        return _found(self._chains, name, default, self._shape[:1])


class Memory:
    """One rule's memory as seen in one pass. Writes take effect when the pass is committed."""

    def __init__(self, table: MemoryTable, chain_C: IntArray, chain_R: IntArray, offset_R: IntArray) -> None:
        self._table, self._chain_C, self._at_R = table, chain_C, (chain_R, offset_R)
        self._new_rows: dict[str, Values] = {}
        self._new_chains: dict[str, Values] = {}

    def rows(self, name: str, default: ArrayLike) -> Values:
        """Return what ``keep_rows`` kept for each masked position [R, …]; ``default`` where nothing was."""
        return np.asarray(self._table.rows(name, default)[self._at_R])

    def chains(self, name: str, default: ArrayLike) -> Values:
        """Return what ``keep_chains`` kept for each chain [C, …]; ``default`` where nothing was."""
        return np.asarray(self._table.chains(name, default)[self._chain_C])

    def keep_rows(self, name: str, values_R: Values) -> None:
        """Remember one value (or one row of values) per masked position."""
        self._new_rows[name] = values_R

    def keep_chains(self, name: str, values_C: Values) -> None:
        """Remember one value (or one row of values) per chain."""
        self._new_chains[name] = values_C

    def commit(self) -> None:
        """Store what was kept; the decoder calls this once the pass counts."""
        for name, values_R in self._new_rows.items():
            self._table.rows(name, _blank(values_R))[self._at_R] = values_R
        for name, values_C in self._new_chains.items():
            self._table.chains(name, _blank(values_C))[self._chain_C] = values_C


def _found(
    known: dict[str, tuple[Values, Values]], name: str, default: ArrayLike, shape: tuple[int, ...]
) -> Values:
    if name not in known:
        fill = np.asarray(default)
        known[name] = fill, np.broadcast_to(fill, (*shape, *fill.shape)).copy()
    return known[name][1]


def _blank(values: Values) -> Values:
    """What stands where a rule keeps values that it never asked for with a default: zeros of that kind."""
    return np.zeros(values.shape[1:], values.dtype)


def nothing_kept(n_chains: int, chain_R: IntArray, offset_R: IntArray) -> Memory:
    """Return an empty memory for a view made by hand (``StepView.of``)."""
    width = int(offset_R.max(initial=-1)) + 1
    return MemoryTable(n_chains, width).at(np.arange(n_chains), chain_R, offset_R)
