"""One text whose decoder hands over every pass: token ids before and after it, and its logits.

A slot is a place for one token. It keeps its identity while others are inserted before it or deleted
(LLaDA-2.2). In the recorded rows, ``position`` counts all slots that ever existed, in text order; without
insertions and deletions that is the position in the canvas. Does not depend on files.

Shape letters: W positions of the window before a pass, A after it, C changes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from orderlens.decode.record_calls import to_device
from orderlens.decode.record_canvas import Changes, row_stats
from orderlens.errors import UserInputError

NEW = -1
"""Origin of a slot that a pass inserts."""


class PassCanvas:
    """The slots of one text.

    Attributes:
        n_passes: passes so far.
        n_unexplained: tokens that changed between two passes, or that were given and changed.
    """

    def __init__(self, mask_id: int, shift: bool = False) -> None:
        self.mask_id, self.shift = mask_id, shift
        self.n_passes = self.n_unexplained = 0
        self._changes: list[Changes] = []
        self._order: list[int] = []
        self._places: list[int] = []
        self._tokens: dict[int, int] = {}
        self._given: set[int] = set()
        self._tail: tuple[int, Tensor] | None = None

    def add(
        self, before: Tensor, after: Tensor, logits: Tensor, start: int, origin: Sequence[int] | None
    ) -> None:
        """Add a pass.

        Args:
            before: token ids [W] of the window.
            after: token ids [A] after the pass; A = W unless ``origin`` is given.
            logits: raw logits [W, V].
            start: position of the window in the canvas.
            origin: for each place after the pass, its place before it, ``NEW`` where it is inserted; places
                that do not occur are deleted. None: nothing moves.
        """
        both = torch.cat([before.reshape(-1), after.reshape(-1)]).tolist()  # one wait for the device
        old, new = both[: before.numel()], both[before.numel() :]
        moved = list(range(len(old))) if origin is None else [int(place) for place in origin]
        _check(moved, len(old), len(new), len(logits))
        window = self._window(start, old)
        kept = [(slot, new[place]) for place, slot in enumerate(moved) if slot != NEW]
        found = [(place, old[place], token) for place, token in kept if old[place] != token]
        gone = sorted(set(range(len(old))) - set(moved))
        found += [(place, old[place], self.mask_id) for place in gone if old[place] != self.mask_id]
        explained = [row for row in found if window[row[0]] not in self._given]
        self.n_unexplained += len(found) - len(explained)
        if explained:
            self._record(explained, window, self._aligned(logits, start))
        if self.shift:
            self._tail = start + len(old), logits[-1:].clone()
        self._move(start, window, moved, new)
        self.n_passes += 1

    def _window(self, start: int, old: Sequence[int]) -> list[int]:
        """Return the slots of a window; tokens at slots that are new to the canvas are given."""
        while len(self._places) < start + len(old):
            self._places.append(self._fresh(len(self._order)))
        window = self._places[start : start + len(old)]
        for slot, token in zip(window, old, strict=True):
            if slot not in self._tokens and token != self.mask_id:
                self._given.add(slot)
            self.n_unexplained += self._tokens.setdefault(slot, token) != token
            self._tokens[slot] = token
        return window

    def _fresh(self, place: int) -> int:
        """Return a new slot, put at a place of the text order."""
        slot = len(self._order)
        self._order.insert(place, slot)
        return slot

    def _aligned(self, logits: Tensor, start: int) -> Tensor:
        """Return the row of each place: with shifted logits, the first is the last of the window before."""
        if not self.shift:
            return logits
        edge = self._tail[1] if self._tail is not None and self._tail[0] == start else logits[:1]
        return torch.cat([edge, logits[:-1]])

    def _record(self, found: Sequence[tuple[int, int, int]], window: Sequence[int], logits: Tensor) -> None:
        """Keep changes (place, old token, new token) with the statistics of their rows."""
        place_C, old_C, new_C = torch.tensor(found).unbind(1)
        slot_C = torch.tensor([window[place] for place, _, _ in found])
        place_d, old_d, new_d = to_device(torch.stack([place_C, old_C, new_C]), logits.device)
        stats = row_stats(logits[place_d], old_d, new_d)
        self._changes.append(Changes(self.n_passes, torch.zeros_like(slot_C), slot_C, old_C, new_C, stats))

    def _move(self, start: int, window: Sequence[int], moved: Sequence[int], new: Sequence[int]) -> None:
        """Put the window after a pass in the place of that before it."""
        slots: list[int] = []
        for place, token in zip(reversed(moved), reversed(new), strict=True):
            if place == NEW:  # before the slot to its right; after the window where there is none
                stop = self._order.index(slots[-1]) if slots else self._order.index(window[-1]) + 1
            slots.append(self._fresh(stop) if place == NEW else window[place])
            self._tokens[slots[-1]] = token
        self._places[start : start + len(window)] = reversed(slots)

    @property
    def changes(self) -> list[Changes]:
        """Everything that was decided so far, at places in text order."""
        place = {slot: number for number, slot in enumerate(self._order)}
        return [
            replace(found, position_C=torch.tensor([place[slot] for slot in found.position_C.tolist()]))
            for found in self._changes
        ]

    def take_changes(self) -> list[Changes]:
        """Return what was decided since the last call, and forget it."""
        changes, self._changes = self.changes, []
        return changes

    @property
    def last_N(self) -> Tensor:
        """Number of the last pass [1]."""
        return torch.tensor([self.n_passes - 1])

    def prompts(self) -> list[list[int]]:
        """Return the given tokens before the first slot to fill."""
        stop = next((i for i, slot in enumerate(self._places) if slot not in self._given), len(self._places))
        return [[self._tokens[slot] for slot in self._places[:stop]]]

    def left_masked(self) -> int:
        """Return how many places of the canvas are masked."""
        return sum(self._tokens.get(slot) == self.mask_id for slot in self._places)


def _check(moved: Sequence[int], n_before: int, n_after: int, n_rows: int) -> None:
    """Refuse a pass whose parts do not fit."""
    kept = [place for place in moved if place != NEW]
    in_order = kept == sorted(set(kept)) and all(0 <= place < n_before for place in kept)
    if n_rows != n_before or len(moved) != n_after or not n_before:
        raise UserInputError(
            f"a pass has {n_before} token ids before, {n_after} after and {n_rows} rows of logits; give one "
            "row per id before, and an origin for each id after if slots are inserted or deleted"
        )
    if not in_order:
        raise UserInputError(
            f"origin={list(moved)}: give increasing places below {n_before}, and {NEW} for inserted slots"
        )
