"""The Session protocol: slots of cached clean prefixes, and states evaluated on top of them.

This module handles blocks, windows and slots; the engine computes. Prefixes of different lengths are cached
in one call: every block of every prefix is one window. ``ShiftedSession`` is for models whose row i − 1
predicts position i, ``SeededSession`` for models with a causal past.

Shape letters: N windows or states, W width, R wanted rows, C model width.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.common.grid import block_edges
from orderlens.errors import UserInputError
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.pages import Slot
from orderlens.models.engine.transfer import HEADER, pack
from orderlens.models.protocol import HiddenRows, IntArray, NextTokens, StateBatch

Window: TypeAlias = tuple[int, int, IntArray]
"""Page-table row (or slot), first position, tokens."""


@dataclass(frozen=True, slots=True)
class _LastForward:
    """The states of the last forward: consecutive windows on the device."""

    input_NX: Tensor
    first: int
    count: int
    longest_start: int


class RowReader:
    """Runs windows through an engine and returns the requested rows; shared by all sessions.

    ``excluded`` lists the ids that no order may reveal, the mask first.
    """

    def __init__(
        self, engine: ForwardEngine, unembed_VC: Tensor, excluded: tuple[int, ...], valid_vocab: int
    ) -> None:
        self._engine = engine
        self._unembed_VC, self.excluded, self._valid_vocab = unembed_VC, excluded, valid_vocab
        self._last: _LastForward | None = None

    @property
    def can_speculate(self) -> bool:
        """Whether ``rerun`` saves time on this engine."""
        return self._engine.can_speculate

    def read(
        self,
        packed_NX: NDArray[np.int32],
        row_state_R: IntArray,
        row_offset_R: IntArray,
        *,
        advance: bool = False,
        first: int = 0,
    ) -> HiddenRows:
        """Return the hidden states at (state, offset) of packed windows, in the order of the request.

        With ``advance`` the windows are cached as well; windows before ``first`` are only cached.
        """
        parts, places = [], []
        for place_r, hidden_rC in self._engine.rows(packed_NX, row_state_R, row_offset_R, advance=advance):
            parts.append(hidden_rC)
            places.append(place_r)
        self._remember(first, len(packed_NX) - first, int(packed_NX[:, 1].max(initial=0)))
        return self.rows(self._in_order(parts, places))

    def rerun(self, more: NextTokens, row_R: Tensor | None = None) -> HiddenRows | None:
        """Run the last windows again, each with one more token; return the rows that predict ``more.row_R``.

        None if another session has run since, or if the last run took several forwards.

        Args:
            more: the new tokens.
            row_R: the rows that predict ``more.row_R``, if they differ from it.
        """
        last = self._last
        if last is None or last.input_NX is not self._engine.input_NX:
            return None
        packed_NX = last.input_NX  # the next run overwrites it
        if last.first:  # kernels need aligned addresses
            packed_NX = packed_NX[last.first : last.first + last.count].clone()
        elif len(packed_NX) > last.count:
            packed_NX = packed_NX[: last.count]
        tokens_N1 = more.token_N[:, None].to(packed_NX.dtype)
        packed_NX[:, HEADER:].scatter_(1, more.offset_N[:, None], tokens_N1)
        hidden_RC = self._engine.run_once(
            packed_NX, last.longest_start, more.row_R if row_R is None else row_R
        )
        self._remember(0, last.count, last.longest_start)
        return None if hidden_RC is None else self.rows(hidden_RC)

    def _remember(self, first: int, count: int, longest_start: int) -> None:
        on_device = self._engine.input_NX
        self._last = None if on_device is None else _LastForward(on_device, first, count, longest_start)

    def rows(self, hidden_RC: Tensor) -> HiddenRows:
        """Return hidden states together with the output matrix."""
        return HiddenRows(hidden_RC, self._unembed_VC, self.excluded, self._valid_vocab)

    def _in_order(self, parts: list[Tensor], places: list[IntArray]) -> Tensor:
        """Put the rows of all parts back into the order of the request."""
        if not parts:
            return self._unembed_VC.new_empty(0, self._unembed_VC.shape[1])
        place_R = np.concatenate(places)
        rows_RC = parts[0] if len(parts) == 1 else torch.cat(parts)
        if (np.diff(place_R) > 0).all():
            return rows_RC
        return rows_RC[torch.from_numpy(np.argsort(place_R)).to(rows_RC.device)]

    def check_length(self, length: int) -> None:
        """Refuse sequences that are longer than the model's context."""
        limit = self._engine.shape.max_positions
        if length > limit:
            raise UserInputError(
                f"a sequence of {length} tokens exceeds the model's {limit} positions; shorten it"
            )

    def check_tokens(self, tokens_NW: IntArray) -> None:
        """Refuse ids outside the vocabulary."""
        low, high = int(tokens_NW.min(initial=0)), int(tokens_NW.max(initial=0))
        if low < 0 or high >= len(self._unembed_VC):
            bad = low if low < 0 else high
            raise UserInputError(
                f"token id {bad} is outside the model's vocabulary of {len(self._unembed_VC)}"
            )


class PagedSession:
    """The Session protocol over the paged cache.

    If the network can store and read in one forward, a finished block is cached by the forward that evaluates
    the next states. Under parallel commits, texts finish their blocks at different times, and a forward for a
    few texts costs nearly as much as one for all.
    """

    def __init__(
        self,
        engine: ForwardEngine,
        block_size: int,
        unembed_VC: Tensor,
        excluded: tuple[int, ...],
        valid_vocab: int,
    ) -> None:
        self._engine, self._block_size = engine, block_size
        self._reader = RowReader(engine, unembed_VC, excluded, valid_vocab)
        self._slots: list[Slot] = []
        self._waiting: list[Window] = []
        """Finished blocks (by table row) whose pages are reserved but not filled yet, earlier ones first."""
        weakref.finalize(self, engine.pool.close, self._slots)  # frees the pages when the session is dropped

    @property
    def lengths(self) -> IntArray:
        """Cached positions of every slot."""
        return np.array([slot.length for slot in self._slots], dtype=np.int64)

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open one slot per prefix and cache its clean tokens, all blocks of all prefixes in one call."""
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
            self._cache(windows)
        for slot, prefix in zip(self._slots, prefixes, strict=True):
            slot.length = len(prefix)

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each slot; its keys are computed before the next read."""
        chosen = [self._slots[index] for index in slots.tolist()]
        if len({slot.row for slot in chosen}) != len(chosen):
            raise ValueError("extend received a slot twice")
        if not chosen:
            return
        width = tokens_NW.shape[1]
        self._engine.pool.reserve([(slot, slot.length + width) for slot in chosen])
        self._reader.check_tokens(tokens_NW)
        self._waiting += [
            (slot.row, slot.length, tokens) for slot, tokens in zip(chosen, tokens_NW.copy(), strict=True)
        ]
        for slot in chosen:
            slot.length += width
        if not self._engine.advances:
            self._fill()

    def _fill(self) -> None:
        """Cache the waiting finished blocks in a separate forward."""
        if self._waiting:
            self._cache(self._waiting)
            self._waiting.clear()

    def _cache(self, windows: list[Window]) -> None:
        """Compute keys and values of finished blocks (by table row, earlier blocks of a sequence first)."""
        self._engine.store(self._packed(windows))

    def keep(self, slots: IntArray) -> None:
        """Keep these slots, renumbered in this order; repeated slots share their pages."""
        pool, new_slots = self._engine.pool, list[Slot]()
        seen: set[int] = set()
        if len(set(slots.tolist())) < len(slots):
            self._fill()  # repeated slots share pages, which must be filled first
        for index in slots.tolist():
            new_slots.append(pool.fork(self._slots[index]) if index in seen else self._slots[index])
            seen.add(index)
        self._replace(new_slots)

    def evaluate(self, states: StateBatch) -> HiddenRows:
        rows_N = self._checked_rows(states)
        self._reader.check_tokens(states.tokens_NW)
        width = states.tokens_NW.shape[1]
        packed = pack(rows_N, states.starts_N, np.full(len(rows_N), width), states.tokens_NW)
        if not self._goes_with(states):
            self._fill()
        if not self._waiting:
            return self._reader.read(packed, states.row_state_R, states.row_offset_R)
        before = self._packed(self._waiting)
        rows = self._reader.read(
            np.concatenate((before, packed)),
            states.row_state_R + len(before),
            states.row_offset_R,
            advance=True,
            first=len(before),
        )
        self._waiting.clear()
        return rows

    @property
    def can_speculate(self) -> bool:
        """Whether ``speculate`` is possible and saves time."""
        return self._reader.can_speculate

    def speculate(self, more: NextTokens) -> HiddenRows | None:
        """Evaluate the last states again, each with one more token that is known on the device only."""
        return self._reader.rerun(more)

    def _goes_with(self, states: StateBatch) -> bool:
        """Return whether the waiting blocks can be cached by the forward of these states.

        That forward also writes the states' keys, so the states must start at the end of their slots.
        """
        same = all(len(tokens) == states.tokens_NW.shape[1] for _, _, tokens in self._waiting)
        return same and bool((states.starts_N == self.lengths[states.slots_N]).all())

    def _checked_rows(self, states: StateBatch) -> IntArray:
        """Return the page-table rows of the states' slots."""
        lengths_N = self.lengths[states.slots_N]
        if (states.starts_N > lengths_N).any():
            bad = int(np.flatnonzero(states.starts_N > lengths_N)[0])
            raise ValueError(
                f"state {bad} starts at {states.starts_N[bad]}, but its slot has {lengths_N[bad]} cached "
                "positions"
            )
        self._reader.check_length(int((states.starts_N + states.tokens_NW.shape[1]).max(initial=0)))
        return np.array([slot.row for slot in self._slots], dtype=np.int64)[states.slots_N]

    def _replace(self, slots: list[Slot]) -> None:
        rows = {slot.row for slot in slots}
        self._waiting = [window for window in self._waiting if window[0] in rows]
        self._engine.pool.close(slot for slot in self._slots if slot.row not in rows)
        self._slots[:] = slots

    def _packed(self, windows: list[Window]) -> NDArray[np.int32]:
        """Return packed integers; short windows are padded with their first token."""
        width = max(len(tokens) for _, _, tokens in windows)
        tokens_NW = np.stack(
            [np.pad(tokens, (0, width - len(tokens)), constant_values=tokens[0]) for *_, tokens in windows]
        )
        columns = np.array([(row, start, len(tokens)) for row, start, tokens in windows])
        self._reader.check_tokens(tokens_NW)
        return pack(columns[:, 0], columns[:, 1], columns[:, 2], tokens_NW)


class ShiftedSession(PagedSession):
    """A paged session that also keeps the hidden state before every block boundary.

    Inside a block, rows shift by one. The first position of a block is predicted by the last position of the
    block before it, which is clean and cached. The forward that caches the block returns that hidden state,
    and the session stores it per slot and boundary.
    """

    _tails: dict[int, dict[int, Tensor]]
    """Table row of a slot → position of a boundary → hidden state [C] of the position before it."""

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open one slot per prefix, cache its clean tokens, and store the predictions of each next block."""
        self._tails = defaultdict(dict)
        super().prefill(prefixes, grid_offsets)

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each slot and cache it now: it predicts the next block's start."""
        super().extend(slots, tokens_NW)
        self._fill()

    def keep(self, slots: IntArray) -> None:
        """Keep these slots, renumbered in this order."""
        before = [self._slots[index].row for index in slots.tolist()]
        super().keep(slots)
        tails = {slot.row: dict(self._tails[row]) for slot, row in zip(self._slots, before, strict=True)}
        self._tails = defaultdict(dict, tails)

    def _cache(self, windows: list[Window]) -> None:
        """Cache finished blocks and store the hidden state of each block's last position."""
        packed = self._packed(windows)
        advances = self._engine.advances
        if not advances:
            self._engine.store(packed)
        last_N = np.array([len(tokens) - 1 for *_, tokens in windows])
        rows = self._reader.read(packed, np.arange(len(windows)), last_N, advance=advances)
        for (row, start, tokens), tail_C in zip(windows, rows.hidden_RD, strict=True):
            self._tails[row][start + len(tokens)] = tail_C

    def evaluate(self, states: StateBatch) -> HiddenRows:
        """Return the hidden states that predict the requested positions."""
        start_R = states.starts_N[states.row_state_R]
        is_stored_R, offset_R = self._sources(states)
        is_stored_R &= (states.row_offset_R == 0) & (start_R > 0)
        fresh = self._evaluate_some(states, np.flatnonzero(~is_stored_R), offset_R)
        if not is_stored_R.any():
            return fresh
        stored = np.flatnonzero(is_stored_R)
        slot_K = states.slots_N[states.row_state_R[stored]]
        pairs = zip(slot_K.tolist(), start_R[stored].tolist(), strict=True)
        tails_KC = torch.stack([self._tails[self._slots[slot].row][start] for slot, start in pairs])
        hidden_RC = fresh.hidden_RD.new_empty(len(is_stored_R), tails_KC.shape[1])
        device = hidden_RC.device
        hidden_RC[torch.from_numpy(is_stored_R).to(device)] = tails_KC
        hidden_RC[torch.from_numpy(~is_stored_R).to(device)] = fresh.hidden_RD
        return self._reader.rows(hidden_RC)

    def _sources(self, states: StateBatch) -> tuple[NDArray[np.bool_], IntArray]:
        """Return which rows a stored state predicts if they begin a block, and the offsets of the others."""
        return np.ones(len(states.row_offset_R), bool), np.maximum(states.row_offset_R - 1, 0)

    @property
    def can_speculate(self) -> bool:
        """Always False: rows come from the forward and from stored states."""
        return False

    def _evaluate_some(self, states: StateBatch, rows: IntArray, offset_R: IntArray) -> HiddenRows:
        """Evaluate only the states that some of ``rows`` belong to."""
        used, state_r = np.unique(states.row_state_R[rows], return_inverse=True)
        part = StateBatch(
            states.slots_N[used], states.starts_N[used], states.tokens_NW[used], state_r, offset_R[rows]
        )
        return super().evaluate(part)


class SeededSession(ShiftedSession):
    """A paged session whose finished blocks are causal, and whose blocks begin with an autoregressive token.

    Finished blocks are cached as windows of one token, each of which sees what is before it. The forward of a
    layer writes all keys before a window reads them, so one forward caches a whole prefix. Rows are not
    shifted, except that the token before a block predicts its first token while the whole block is masked.
    """

    def _cache(self, windows: list[Window]) -> None:
        """Cache finished blocks token by token, and store the hidden state of every token."""
        super()._cache(
            [
                (row, start + i, tokens[i : i + 1])
                for row, start, tokens in windows
                for i in range(len(tokens))
            ]
        )

    def _sources(self, states: StateBatch) -> tuple[NDArray[np.bool_], IntArray]:
        mask_id = self._reader.excluded[0]
        is_blank_N = (states.tokens_NW == mask_id).all(axis=1)
        return is_blank_N[states.row_state_R], states.row_offset_R
