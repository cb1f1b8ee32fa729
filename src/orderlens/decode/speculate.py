"""Speculative execution: the next pass is queued on the device before the host has chosen.

While the host reads a pass's statistics, lets the policies choose and records, the device would wait. Where
every policy reveals one position per pass, by a number that the device has as well, the device guesses what
will be revealed and begins the next forward. If the host then requests exactly that, the numbers are there or
on their way; if not, they are dropped and the pass is made in the plain way. So speculation changes when
something is computed, never what. A pass that finishes a block is not followed by a guess: what comes next
depends on how the text goes on.

Shape letters: C chains of the batch, W window, R rows of this pass, A places that the next pass may request,
S static chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from time import perf_counter

import numpy as np

from orderlens.common.machine import is_out_of_memory
from orderlens.decode.chains import Chains
from orderlens.decode.passes import NextRows, PassRequest, Queued
from orderlens.models.protocol import IntArray, Rows, Session, Speculates
from orderlens.rules.orders.protocol import READINGS
from orderlens.rules.stats import Answer, RowStats

PATIENCE = 8
"""Wrong guesses that are forgiven, and one more for as many right ones."""
TRIAL = 2
"""Passes without guesses before it is decided; the last one counts (the first of a block caches another)."""
IDLE = 1e-4
"""A wait this short (seconds) means that the device was done first."""


class Speculator:
    """Queues the passes of a batch in advance, where all of its policies and its session allow it."""

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
        self.gate = SpeculationGate()
        self._before: tuple[PassRequest, Queued] | None = None
        self._session = session if isinstance(session, Speculates) and session.can_speculate else None
        used = np.unique(chains.policy_N[members]).tolist()
        self._reading_P = np.zeros(len(chains.policies), np.int64)
        for p, reading in ((p, chains.policies[p].speculates_by(temperature)) for p in used):
            if reading is None:
                self._session = None
            else:
                self._reading_P[p] = READINGS.index(reading)

    def begin(self, request: PassRequest, plain: Callable[[], tuple[Rows, Answer]]) -> tuple[Rows, Answer]:
        """Return rows and statistics of what is requested, guessed or started now; queue what may follow.

        ``plain`` starts the pass without a guess.
        """
        if self._session is None:
            return plain()
        began = perf_counter()
        ready = self._find(request)
        looked, found = perf_counter() - began, ready is not None
        rows, answer = ready or plain()
        follows = found or self.gate.started(perf_counter() - began)
        if follows and np.count_nonzero(request.open_CB, axis=1).min() >= 2:
            began = perf_counter()
            self._guess(request, answer)
            self.gate.guessed(perf_counter() - began + looked)
        if not found and self._before is not None:
            return rows, answer  # part of the wait is hidden by the guess
        return rows, _timed(answer, self.gate.waited_for_guess if found else self.gate.waited)

    def _find(self, request: PassRequest) -> tuple[Rows, Answer] | None:
        """Return what is requested, if it was queued already."""
        if self._before is None:
            return None
        (earlier, queued), self._before = self._before, None
        right = _same(earlier, queued, request)
        self.taken, self.missed = self.taken + right, self.missed + (not right)
        if self.missed > PATIENCE + self.taken // PATIENCE:
            self._session = None
        return (queued.rows, queued.answer) if right else None

    def _guess(self, request: PassRequest, answer: Answer) -> None:
        """Queue the pass that probably follows ``request``, whose statistics are ``answer``."""
        from orderlens.decode.speculate_torch import queue

        if self._session is None:
            return
        try:
            following = next_rows(self._chains, request, self._temperature)
            reading_C = self._reading_P[self._chains.policy_N[request.index_C]]
            queued = queue(self._session, answer, following, reading_C, self._eos_ids)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            queued = None
        if queued is None:
            self._session = None  # it would be the same again
        else:
            self._before = request, queued


def _timed(answer: Answer, waited: Callable[[float], None]) -> Answer:
    def wait() -> RowStats:
        began = perf_counter()
        found = answer()
        waited(perf_counter() - began)
        return found

    return wait


def _same(earlier: PassRequest, queued: Queued, request: PassRequest) -> bool:
    """Return whether ``request`` is what was evaluated: the earlier windows with the guessed tokens."""
    if not np.array_equal(earlier.index_C, request.index_C):
        return False
    if not np.array_equal(earlier.states.starts_N, request.states.starts_N):
        return False
    offset_C, token_C = queued.guess()
    tokens_CW = earlier.states.tokens_NW.copy()
    tokens_CW[np.arange(len(offset_C)), offset_C] = token_C
    return np.array_equal(tokens_CW, request.states.tokens_NW)


def next_rows(chains: Chains, request: PassRequest, temperature: float) -> NextRows:
    """Return what is known of the pass after ``request``; no chain may finish its block with this one.

    Every chain reveals one of its rows. A chain that compares its rows requests the others again; a static
    one requests the next position of its path.
    """
    index_C, chain_R = request.index_C, request.chain_R
    count, width = request.states.tokens_NW.shape
    static_C = np.array([policy.is_static for policy in chains.policies])[chains.policy_N[index_C]]
    n_C = np.bincount(chain_R, minlength=count)
    fixed_C = np.full(count, -1)
    place_A, chain_A, offset_A = chain_R * width + request.states.row_offset_R, chain_R, request.offset_R
    if static_C.any():
        s = np.flatnonzero(static_C)
        due_SB = chains.rank_NB[index_C[s]] == chains.pass_N[index_C[s]][:, None] + 1
        offset_S = due_SB.argmax(axis=1)
        low_S = chains.start_N[index_C[s]] - request.states.starts_N[s]
        fixed_C[s] = len(chain_R) + np.arange(len(s))
        place_A = np.concatenate((place_A, s * width + low_S + offset_S))
        chain_A, offset_A = np.concatenate((chain_A, s)), np.concatenate((offset_A, offset_S))
    uniforms_A = None
    if temperature:
        uniforms_A = chains.draws.rows(index_C, chains.pass_N[index_C] + 1)[chain_A, offset_A]
    return NextRows(np.cumsum(n_C) - n_C, n_C, fixed_C, place_A, width, temperature, uniforms_A)


class SpeculationGate:
    """Measures, in seconds, what a guess costs the host and how much waiting it hides.

    Without guesses a pass takes the host's own work and the wait for the device. A guess hides the wait, but
    costs the host more than starting the pass once it is known: it pays where the wait is longer than that.
    So the first passes of a batch are made without guesses, and again those of a block after one in which
    the device was mostly done before the host. Times decide when something is computed, never what.
    """

    def __init__(self) -> None:
        self._trial = TRIAL
        self._start = self._guess = math.inf
        self._pays = True
        self._hidden = self._waits = 0

    def started(self, seconds: float) -> bool:
        """Note the cost of a pass that was started without a guess; return whether to guess the next one."""
        self._start = min(self._start, seconds)
        if 2 * self._hidden > self._waits:
            self._trial = TRIAL
        self._hidden = self._waits = 0
        return self._pays and not self._trial

    def guessed(self, seconds: float) -> None:
        """Note what a guess cost the host."""
        self._guess = min(self._guess, seconds)

    def waited(self, seconds: float) -> None:
        """Note the wait for a pass that was started without a guess and is followed by none."""
        self._trial = max(0, self._trial - 1)
        more = 0.0 if math.isinf(self._guess) else self._guess - self._start
        self._pays = seconds > more

    def waited_for_guess(self, seconds: float) -> None:
        """Note the wait for a pass that had been guessed."""
        self._waits += 1
        self._hidden += seconds < IDLE
