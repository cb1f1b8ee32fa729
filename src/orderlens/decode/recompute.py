"""A model without its prefix cache: the clean prefix of every state is computed again, for that state alone.

The same engine, kernels and precision as ever; only what a state reads of its prefix was not kept from an
earlier forward and is shared with no other state. Slow by design: it shows what the cache changes.

Shape letters: N states, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from orderlens.decode.head import blank_rows, put_rows
from orderlens.models.protocol import IntArray, Model, Rows, Session, StateBatch

STATES_AT_ONCE = 512
"""States whose prefixes are held together, a slot each."""


def without_cache(model: Model) -> Model:
    """Return ``model`` with sessions that keep tokens instead of keys."""
    return cast(Model, _Uncached(model))


class _Uncached:
    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def open_session(self) -> RecomputingSession:
        return RecomputingSession(self._model)


class RecomputingSession:
    """The Session protocol over tokens: every evaluation fills fresh slots, one per state."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._prefixes: list[IntArray] = []
        self._offsets: list[int] = []

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Remember the clean tokens of one slot per prefix."""
        self._prefixes, self._offsets = [np.asarray(prefix) for prefix in prefixes], list(grid_offsets)

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Remember one more block of each slot."""
        for slot, tokens in zip(slots.tolist(), tokens_NW, strict=True):
            self._prefixes[slot] = np.concatenate((self._prefixes[slot], tokens))

    def keep(self, slots: IntArray) -> None:
        """Keep the given slots, renumbered in this order."""
        self._prefixes = [self._prefixes[slot] for slot in slots.tolist()]
        self._offsets = [self._offsets[slot] for slot in slots.tolist()]

    def evaluate(self, states: StateBatch) -> Rows:
        """Return the wanted rows, each state read over a prefix of its own."""
        found: Rows | None = None
        for low in range(0, max(1, len(states.slots_N)), STATES_AT_ONCE):
            high = low + STATES_AT_ONCE
            mine = np.flatnonzero((states.row_state_R >= low) & (states.row_state_R < high))
            rows = self._evaluate(states, slice(low, high), mine)
            found = blank_rows(rows, len(states.row_state_R)) if found is None else found
            put_rows(found, mine, rows)
        assert found is not None
        return found

    def _evaluate(self, states: StateBatch, part: slice, mine: IntArray) -> Rows:
        slots, starts = states.slots_N[part], states.starts_N[part]
        session: Session = self._model.open_session()
        session.prefill(
            [
                self._prefixes[slot][:start]
                for slot, start in zip(slots.tolist(), starts.tolist(), strict=True)
            ],
            [self._offsets[slot] for slot in slots.tolist()],
        )
        return session.evaluate(
            StateBatch(
                np.arange(len(slots)),
                starts,
                states.tokens_NW[part],
                states.row_state_R[mine] - part.start,
                states.row_offset_R[mine],
            )
        )
