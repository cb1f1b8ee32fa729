"""The rows of a policy's last pass, kept per chain and offset, and how far this pass has moved from them.

What is kept is what the model gave: hidden states (the width of the model per position, on its device) from
which the head makes the earlier distribution again, or log-probabilities where a model gives those. Rows are
kept when a pass counts, so a pass that fails for lack of memory can be repeated; a block starts with nothing
kept, because a fixed text is scored with all its blocks side by side.

Shape letters: N chains of a call, B block size, R rows of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.decode.head import blank_rows, divergence, put_rows, take_rows
from orderlens.models.protocol import FloatArray, IntArray, Rows


class RowHistory:
    """The last rows of every masked position of the chains that ask for it."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = n_chains, block_size
        self._kept_NB: IntArray | None = None  # pass at which the row was kept, −1 where none is
        self._slot_N: IntArray | None = None
        self._store: Rows | None = None
        self._n_slots = 0

    def forget(self, chains: IntArray) -> None:
        """The given chains enter a new block."""
        if self._kept_NB is not None:
            self._kept_NB[chains] = -1

    def compare(self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows) -> Compared:
        """Return KL(now ‖ the pass before) of every row, and the rows as something that can be kept."""
        if self._kept_NB is None:
            self._kept_NB, self._slot_N = np.full(self._shape, -1), np.full(self._shape[0], -1)
        kl_R = np.full(len(chain_R), np.inf)
        known = np.flatnonzero((pass_R > 0) & (self._kept_NB[chain_R, offset_R] == pass_R - 1))
        if len(known):
            assert self._store is not None
            before = take_rows(self._store, self._places(chain_R[known], offset_R[known]))
            kl_R[known] = divergence(take_rows(rows, known), before)
        self._make_room(
            np.unique(chain_R), rows
        )  # now: once a pass counts it must not fail for lack of memory
        return Compared(self, chain_R, offset_R, pass_R, rows, kl_R)

    def keep(self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows) -> None:
        """Keep the rows of a pass that counts."""
        assert self._kept_NB is not None
        assert self._store is not None
        put_rows(self._store, self._places(chain_R, offset_R), rows)
        self._kept_NB[chain_R, offset_R] = pass_R

    def _places(self, chain_R: IntArray, offset_R: IntArray) -> IntArray:
        assert self._slot_N is not None
        places: IntArray = self._slot_N[chain_R] * self._shape[1] + offset_R
        return places

    def _make_room(self, chains: IntArray, rows: Rows) -> None:
        assert self._slot_N is not None
        new = chains[self._slot_N[chains] < 0]
        if not len(new):
            return
        self._slot_N[new] = self._n_slots + np.arange(len(new))
        grown = blank_rows(rows, (self._n_slots + len(new)) * self._shape[1])
        if self._store is not None:
            put_rows(grown, np.arange(self._n_slots * self._shape[1]), self._store)
        self._store, self._n_slots = grown, self._n_slots + len(new)


@dataclass(frozen=True, slots=True)
class Compared:
    """One pass beside the one before it.

    Attributes:
        kl_R: KL divergence in nats of this pass from the pass before; inf in a block's first pass.
    """

    history: RowHistory
    chain_R: IntArray
    offset_R: IntArray
    pass_R: IntArray
    rows: Rows
    kl_R: FloatArray

    def commit(self) -> None:
        """Keep this pass's rows; the decoder calls this once the pass counts."""
        self.history.keep(self.chain_R, self.offset_R, self.pass_R, self.rows)
