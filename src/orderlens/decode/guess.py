"""Guessing ahead: the next pass is queued on the device before the host has chosen.

While the host reads a pass's statistics, lets the policies choose and records, the device would wait. Where
every policy reveals one position per pass, by a number that the device has as well, the device guesses what
will be revealed and begins the next forward. If the host then asks for exactly that, the numbers are there or
on their way; if not, they are dropped and the pass is made as if nobody had guessed. So a guess changes when
something is computed, never what.

No guess is made in a pass that finishes a block: what follows depends on how the text goes on. Nor where the
host is what everything waits for (``worth``).

Shape letters: C chains of the batch, W window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

import numpy as np

from orderlens.common.machine import is_out_of_memory
from orderlens.decode.chains import Chains
from orderlens.decode.next_rows import next_rows
from orderlens.decode.passes import Asked, Queued
from orderlens.decode.worth import Worth
from orderlens.models.protocol import Foresees, IntArray, Rows, Session
from orderlens.rules.orders.protocol import READINGS
from orderlens.rules.stats import Answer, RowStats

PATIENCE = 8
"""Wrong guesses that are forgiven, and one more for as many right ones."""


class Guesser:
    """Queues the passes of a batch ahead, where all of its policies and its session can be foreseen."""

    def __init__(
        self,
        session: Session,
        chains: Chains,
        members: IntArray,
        eos_ids: Iterable[int],
        temperature: float,
    ) -> None:
        self._chains, self._eos_ids, self._temperature = chains, eos_ids, temperature
        self.taken = self.missed = 0
        self.worth = Worth()
        self._before: tuple[Asked, Queued] | None = None
        self._session = session if isinstance(session, Foresees) and session.foresees else None
        used = np.unique(chains.policy_N[members]).tolist()
        found = {p: chains.policies[p].foreseen_by(temperature) for p in used}
        self._kind_P = np.zeros(len(chains.policies), np.int64)
        for p, reading in found.items():
            if reading is None:
                self._session = None
            else:
                self._kind_P[p] = READINGS.index(reading)

    def begin(self, asked: Asked, plain: Callable[[], tuple[Rows, Answer]]) -> tuple[Rows, Answer]:
        """Return rows and statistics of what is asked, guessed or started now, and queue what may follow.

        ``plain`` starts the pass as if nobody had guessed.
        """
        if self._session is None:
            return plain()
        began = perf_counter()
        ready = self._find(asked)
        looked, found = perf_counter() - began, ready is not None
        rows, answer = ready or plain()
        follows = found or self.worth.started(perf_counter() - began)
        if follows and np.count_nonzero(asked.open_CB, axis=1).min() >= 2:
            began = perf_counter()
            self._guess(asked, answer)
            self.worth.guessed(perf_counter() - began + looked)
        if not found and self._before is not None:
            return rows, answer  # part of the wait is hidden by the guess
        return rows, _timed(answer, self.worth.waited_for_guess if found else self.worth.waited)

    def _find(self, asked: Asked) -> tuple[Rows, Answer] | None:
        """Return what is asked, if it was queued already."""
        if self._before is None:
            return None
        (earlier, queued), self._before = self._before, None
        right = _same(earlier, queued, asked)
        self.taken, self.missed = self.taken + right, self.missed + (not right)
        if self.missed > PATIENCE + self.taken // PATIENCE:
            self._session = None
        return (queued.rows, queued.answer) if right else None

    def _guess(self, asked: Asked, answer: Answer) -> None:
        """Queue the pass that probably follows ``asked``, whose statistics are ``answer``."""
        from orderlens.decode.guess_torch import queue

        if self._session is None:
            return
        try:
            following = next_rows(self._chains, asked, self._temperature)
            kind_C = self._kind_P[self._chains.policy_N[asked.index_C]]
            queued = queue(self._session, answer, following, kind_C, self._eos_ids)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            queued = None
        if queued is None:
            self._session = None  # it would be the same again
        else:
            self._before = asked, queued


def _timed(answer: Answer, waited: Callable[[float], None]) -> Answer:
    def wait() -> RowStats:
        began = perf_counter()
        found = answer()
        waited(perf_counter() - began)
        return found

    return wait


def _same(earlier: Asked, queued: Queued, asked: Asked) -> bool:
    """Return whether ``asked`` is what was evaluated: the earlier windows with the guessed tokens."""
    if not np.array_equal(earlier.index_C, asked.index_C):
        return False
    if not np.array_equal(earlier.states.starts_N, asked.states.starts_N):
        return False
    offset_C, token_C = queued.guess()
    tokens_CW = earlier.states.tokens_NW.copy()
    tokens_CW[np.arange(len(offset_C)), offset_C] = token_C
    return np.array_equal(tokens_CW, asked.states.tokens_NW)
