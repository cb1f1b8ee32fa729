"""Block-causal models whose row i − 1 speaks about position i.

Inside a block the rows only move by one. The first position of a block is spoken about by the last position
of the block before it, which is clean and cached: its hidden state is kept per slot and block boundary, at
the price of one more forward per finished block.

Shape letters: N windows or states, W width, R wanted rows, C model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.grid import block_edges
from orderlens.models.protocol import HiddenRows, IntArray, StateBatch
from orderlens.models.torch.session import PagedSession, Window


class ShiftedSession(PagedSession):
    """A paged session that also keeps the hidden state before every block boundary."""

    _tails: list[dict[int, Tensor]]
    """For every slot: position of a boundary → hidden state [C] of the position before it."""

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open one slot per prefix, cache its clean tokens and keep what speaks about each next block."""
        super().prefill(prefixes, grid_offsets)
        self._tails = [{} for _ in prefixes]
        self._keep_tails(
            [
                (index, low, prefix[low:high])
                for index, (prefix, offset) in enumerate(zip(prefixes, grid_offsets, strict=True))
                for low, high in block_edges(len(prefix), self._block_size, offset)
            ]
        )

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each slot."""
        starts = self.lengths[slots]
        super().extend(slots, tokens_NW)
        self._keep_tails(list(zip(slots.tolist(), starts.tolist(), tokens_NW, strict=True)))

    def keep(self, slots: IntArray) -> None:
        """Keep the given slots, renumbered in this order."""
        super().keep(slots)
        self._tails = [dict(self._tails[index]) for index in slots.tolist()]

    def evaluate(self, states: StateBatch) -> HiddenRows:
        """Return the hidden states that speak about the wanted positions."""
        start_R = states.starts_N[states.row_state_R]
        kept_R = (states.row_offset_R == 0) & (start_R > 0)
        offset_R = np.maximum(states.row_offset_R - 1, 0)
        fresh = self._evaluate_some(states, np.flatnonzero(~kept_R), offset_R)
        if not kept_R.any():
            return fresh
        slot_R = states.slots_N[states.row_state_R]
        kept = np.flatnonzero(kept_R)
        pairs = zip(slot_R[kept].tolist(), start_R[kept].tolist(), strict=True)
        tails_KC = torch.stack([self._tails[slot][start] for slot, start in pairs])
        hidden_RC = fresh.hidden_RD.new_empty(len(kept_R), tails_KC.shape[1])
        device = hidden_RC.device
        hidden_RC[torch.from_numpy(kept_R).to(device)] = tails_KC
        hidden_RC[torch.from_numpy(~kept_R).to(device)] = fresh.hidden_RD
        return self._reader.rows(hidden_RC)

    def _evaluate_some(self, states: StateBatch, rows: IntArray, offset_R: IntArray) -> HiddenRows:
        """Evaluate only the states that some of ``rows`` belong to."""
        used, state_r = np.unique(states.row_state_R[rows], return_inverse=True)
        part = StateBatch(
            states.slots_N[used], states.starts_N[used], states.tokens_NW[used], state_r, offset_R[rows]
        )
        return super().evaluate(part)

    def _keep_tails(self, windows: list[Window]) -> None:
        """Keep the hidden state of the last position of each (slot, start, tokens)."""
        if not windows:
            return
        rows = [(self._slots[slot].row, start, tokens) for slot, start, tokens in windows]
        last_N = np.array([len(tokens) - 1 for *_, tokens in windows])
        hidden_NC = self._reader.read(self._packed(rows), np.arange(len(windows)), last_N).hidden_RD
        for (slot, start, tokens), tail_C in zip(windows, hidden_NC, strict=True):
            self._tails[slot][start + len(tokens)] = tail_C
