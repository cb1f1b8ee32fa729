"""Block-causal models whose row i − 1 speaks about position i.

Inside a block the rows only move by one. The first position of a block is spoken about by the last position
of the block before it, which is clean and cached: its hidden state comes out of the forward that caches the
block, and is kept per slot and boundary.

Shape letters: N windows or states, W width, R wanted rows, C model width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.models.engine.session import PagedSession, Window
from orderlens.models.protocol import HiddenRows, IntArray, StateBatch


class ShiftedSession(PagedSession):
    """A paged session that also keeps the hidden state before every block boundary."""

    _tails: dict[int, dict[int, Tensor]]
    """Table row of a slot → position of a boundary → hidden state [C] of the position before it."""

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open one slot per prefix, cache its clean tokens and keep what speaks about each next block."""
        self._tails = defaultdict(dict)
        super().prefill(prefixes, grid_offsets)

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each slot, cached at once: the next block's first position asks it."""
        super().extend(slots, tokens_NW)
        self._fill()

    def keep(self, slots: IntArray) -> None:
        """Keep the given slots, renumbered in this order."""
        before = [self._slots[index].row for index in slots.tolist()]
        super().keep(slots)
        kept = {slot.row: dict(self._tails[row]) for slot, row in zip(self._slots, before, strict=True)}
        self._tails = defaultdict(dict, kept)

    def _cache(self, windows: list[Window]) -> None:
        """Cache finished blocks and keep the hidden state of each one's last position."""
        packed = self._packed(windows)
        advances = self._engine.advances
        if not advances:
            self._engine.store(packed)
        last_N = np.array([len(tokens) - 1 for *_, tokens in windows])
        rows = self._reader.read(packed, np.arange(len(windows)), last_N, advance=advances)
        for (row, start, tokens), tail_C in zip(windows, rows.hidden_RD, strict=True):
            self._tails[row][start + len(tokens)] = tail_C

    def evaluate(self, states: StateBatch) -> HiddenRows:
        """Return the hidden states that speak about the wanted positions."""
        start_R = states.starts_N[states.row_state_R]
        kept_R = (states.row_offset_R == 0) & (start_R > 0)
        offset_R = np.maximum(states.row_offset_R - 1, 0)
        fresh = self._evaluate_some(states, np.flatnonzero(~kept_R), offset_R)
        if not kept_R.any():
            return fresh
        kept = np.flatnonzero(kept_R)
        slot_K = states.slots_N[states.row_state_R[kept]]
        pairs = zip(slot_K.tolist(), start_R[kept].tolist(), strict=True)
        tails_KC = torch.stack([self._tails[self._slots[slot].row][start] for slot, start in pairs])
        hidden_RC = fresh.hidden_RD.new_empty(len(kept_R), tails_KC.shape[1])
        device = hidden_RC.device
        hidden_RC[torch.from_numpy(kept_R).to(device)] = tails_KC
        hidden_RC[torch.from_numpy(~kept_R).to(device)] = fresh.hidden_RD
        return self._reader.rows(hidden_RC)

    @property
    def foresees(self) -> bool:
        """Rows come from several places here: nothing is begun ahead."""
        return False

    def _evaluate_some(self, states: StateBatch, rows: IntArray, offset_R: IntArray) -> HiddenRows:
        """Evaluate only the states that some of ``rows`` belong to."""
        used, state_r = np.unique(states.row_state_R[rows], return_inverse=True)
        part = StateBatch(
            states.slots_N[used], states.starts_N[used], states.tokens_NW[used], state_r, offset_R[rows]
        )
        return super().evaluate(part)
