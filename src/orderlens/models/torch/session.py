"""The Session protocol: slots of cached clean prefixes, and states evaluated on top of them.

Blocks, windows and slots live here; tensors only pass through. Prefixes of different lengths are cached in
one go: every block of every prefix is a window of its own.

Shape letters: N windows or states, W width, R wanted rows, C model width.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.errors import UserInputError
from orderlens.grid import block_edges
from orderlens.models.protocol import HiddenRows, IntArray, StateBatch
from orderlens.models.torch.engine import Engine
from orderlens.models.torch.pages import Slot
from orderlens.models.torch.window import pack, to_device


class PagedSession:
    """Model-side memory of a batch of sequences."""

    def __init__(
        self,
        engine: Engine,
        block_size: int,
        unembed_VC: Tensor,
        excluded: tuple[int, ...],
        valid_vocab: int,
    ) -> None:
        self._engine, self._block_size = engine, block_size
        self._unembed_VC, self._excluded, self._valid_vocab = unembed_VC, excluded, valid_vocab
        self._slots: list[Slot] = []
        weakref.finalize(self, engine.pool.close, self._slots)  # pages go back when the session is dropped

    @property
    def lengths(self) -> IntArray:
        """Cached positions of every slot."""
        return np.array([slot.length for slot in self._slots], dtype=np.int64)

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open one slot per prefix and cache its clean tokens, all blocks of all prefixes together."""
        self._replace([])
        pool = self._engine.pool
        self._slots += [pool.open() for _ in prefixes]
        pool.reserve([(slot, len(prefix)) for slot, prefix in zip(self._slots, prefixes, strict=True)])
        windows = [
            (slot.row, low, prefix[low:high])
            for slot, prefix, offset in zip(self._slots, prefixes, grid_offsets, strict=True)
            for low, high in block_edges(len(prefix), self._block_size, offset)
        ]
        if windows:
            self._engine.store(self._packed(windows))
        for slot, prefix in zip(self._slots, prefixes, strict=True):
            slot.length = len(prefix)

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each slot."""
        chosen = [self._slots[index] for index in slots.tolist()]
        if len({slot.row for slot in chosen}) != len(chosen):
            raise ValueError("extend was given a slot twice")
        if not chosen:
            return
        width = tokens_NW.shape[1]
        self._engine.pool.reserve([(slot, slot.length + width) for slot in chosen])
        windows = [(slot.row, slot.length, tokens) for slot, tokens in zip(chosen, tokens_NW, strict=True)]
        self._engine.store(self._packed(windows))
        for slot in chosen:
            slot.length += width

    def keep(self, slots: IntArray) -> None:
        """Keep the given slots, renumbered in this order; repeats share their pages."""
        pool, kept = self._engine.pool, list[Slot]()
        taken: set[int] = set()
        for index in slots.tolist():
            kept.append(pool.fork(self._slots[index]) if index in taken else self._slots[index])
            taken.add(index)
        self._replace(kept)

    def evaluate(self, states: StateBatch) -> HiddenRows:
        """Return the hidden states of the wanted rows."""
        rows_N = self._checked_rows(states)
        self._check_tokens(states.tokens_NW)
        width = states.tokens_NW.shape[1]
        packed = pack(rows_N, states.starts_N, np.full(len(rows_N), width), states.tokens_NW)
        parts, places = [], []
        for low, hidden_nWC in self._engine.hidden(packed):
            inside = (states.row_state_R >= low) & (states.row_state_R < low + len(hidden_nWC))
            place_r = np.flatnonzero(inside)
            flat_r = (states.row_state_R[place_r] - low) * width + states.row_offset_R[place_r]
            parts.append(hidden_nWC.flatten(0, 1)[to_device(flat_r, hidden_nWC.device)])
            places.append(place_r)
        hidden_RC = self._in_order(parts, places)
        return HiddenRows(hidden_RC, self._unembed_VC, self._excluded, self._valid_vocab)

    def _in_order(self, parts: list[Tensor], places: list[IntArray]) -> Tensor:
        """Put the rows of all parts back into the order they were asked in."""
        if not parts:
            return self._unembed_VC.new_empty(0, self._unembed_VC.shape[1])
        place_R = np.concatenate(places)
        rows_RC = torch.cat(parts)
        if (np.diff(place_R) > 0).all():
            return rows_RC
        return rows_RC[torch.from_numpy(np.argsort(place_R)).to(rows_RC.device)]

    def _checked_rows(self, states: StateBatch) -> IntArray:
        """Return the page-table rows of the states' slots."""
        lengths_N = self.lengths[states.slots_N]
        if (states.starts_N > lengths_N).any():
            bad = int(np.flatnonzero(states.starts_N > lengths_N)[0])
            raise ValueError(
                f"state {bad} starts at {states.starts_N[bad]} but its slot has {lengths_N[bad]} cached"
            )
        end = int((states.starts_N + states.tokens_NW.shape[1]).max(initial=0))
        limit = self._engine.shape.max_positions
        if end > limit:
            raise UserInputError(f"a sequence of {end} tokens exceeds the model's {limit} positions")
        return np.array([slot.row for slot in self._slots], dtype=np.int64)[states.slots_N]

    def _replace(self, slots: list[Slot]) -> None:
        kept = {slot.row for slot in slots}
        self._engine.pool.close(slot for slot in self._slots if slot.row not in kept)
        self._slots[:] = slots

    def _check_tokens(self, tokens_NW: IntArray) -> None:
        low, high = int(tokens_NW.min(initial=0)), int(tokens_NW.max(initial=0))
        if low < 0 or high >= len(self._unembed_VC):
            bad = low if low < 0 else high
            raise UserInputError(
                f"token id {bad} is outside the model's vocabulary of {len(self._unembed_VC)}"
            )

    def _packed(
        self, windows: list[tuple[int, int, IntArray]]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """Return packed integers, short windows padded with their own first token."""
        width = max(len(tokens) for _, _, tokens in windows)
        tokens_NW = np.stack(
            [np.pad(tokens, (0, width - len(tokens)), constant_values=tokens[0]) for *_, tokens in windows]
        )
        columns = np.array([(row, start, len(tokens)) for row, start, tokens in windows])
        self._check_tokens(tokens_NW)
        return pack(columns[:, 0], columns[:, 1], columns[:, 2], tokens_NW)
