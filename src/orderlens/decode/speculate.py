"""Speculative execution: the next pass is queued on the device before the host has chosen.

Without speculation the device idles while the host reads a pass's statistics, chooses and records. If every
policy reveals one position per pass, by a statistic that is also on the device, the device can predict the
choice and start the next forward. If the host then requests exactly this state, the results are used. If not,
they are dropped and the pass is started as usual. Speculation changes when a number is computed, never its
value. There is no speculation after the last pass of a block, because the next state depends on stopping.

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
from orderlens.decode.passes import NextRows, PassRequest, SpeculativePass
from orderlens.models.protocol import IntArray, Rows, Session, Speculates
from orderlens.rules.orders import READINGS
from orderlens.rules.stats import PendingStats, RowStats

ALLOWED_MISSES = 8
"""Mispredictions before speculation stops; every 8 hits allow one more."""
TRIAL_PASSES = 2
"""Passes without speculation before the gate decides. The last one is timed; the first also fills a cache."""
IDLE_SECONDS = 1e-4
"""A shorter wait means that the device had finished before the host."""


class Speculator:
    """Queues passes of a batch in advance, if all its policies and its session allow it."""

    def __init__(
        self,
        session: Session,
        chains: Chains,
        members: IntArray,
        eos_ids: Iterable[int],
        temperature: float,
    ) -> None:
        self._chains, self._eos_ids, self._temperature = chains, eos_ids, temperature
        self.hits = self.misses = 0
        self.gate = SpeculationGate()
        self._queued: tuple[PassRequest, SpeculativePass] | None = None
        self._session = session if isinstance(session, Speculates) and session.can_speculate else None
        used = np.unique(chains.policy_N[members]).tolist()
        self._reading_P = np.zeros(len(chains.policies), np.int64)
        for p, reading in ((p, chains.policies[p].speculates_by(temperature)) for p in used):
            if reading is None:
                self._session = None
            else:
                self._reading_P[p] = READINGS.index(reading)

    def begin(
        self, request: PassRequest, start: Callable[[], tuple[Rows, PendingStats]]
    ) -> tuple[Rows, PendingStats]:
        """Return the request's rows and statistics, queued earlier or started now; queue the next pass.

        ``start`` starts the pass without speculation.
        """
        if self._session is None:
            return start()
        began = perf_counter()
        ready = self._take_queued(request)
        check_seconds, is_hit = perf_counter() - began, ready is not None
        rows, pending = ready or start()
        speculates = is_hit or self.gate.started(perf_counter() - began)
        if speculates and np.count_nonzero(request.open_CB, axis=1).min() >= 2:
            began = perf_counter()
            self._speculate(request, pending)
            self.gate.speculated(perf_counter() - began + check_seconds)
        if not is_hit and self._queued is not None:
            return rows, pending  # speculation hides part of the wait: not timed
        return rows, _timed(pending, self.gate.waited_for_speculation if is_hit else self.gate.waited)

    def _take_queued(self, request: PassRequest) -> tuple[Rows, PendingStats] | None:
        """Return the queued pass if its prediction was right, and count the hit or miss."""
        if self._queued is None:
            return None
        (earlier, queued), self._queued = self._queued, None
        is_hit = _is_predicted(earlier, queued, request)
        self.hits, self.misses = self.hits + is_hit, self.misses + (not is_hit)
        if self.misses > ALLOWED_MISSES + self.hits // ALLOWED_MISSES:
            self._session = None
        return (queued.rows, queued.pending) if is_hit else None

    def _speculate(self, request: PassRequest, pending: PendingStats) -> None:
        """Queue the predicted successor of ``request``, whose statistics are ``pending``."""
        from orderlens.decode.speculate_torch import queue

        if self._session is None:
            return
        try:
            following = next_rows(self._chains, request, self._temperature)
            reading_C = self._reading_P[self._chains.policy_N[request.index_C]]
            queued = queue(self._session, pending, following, reading_C, self._eos_ids)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            queued = None
        if queued is None:
            self._session = None  # it would fail again
        else:
            self._queued = request, queued


def _timed(pending: PendingStats, waited: Callable[[float], None]) -> PendingStats:
    def wait() -> RowStats:
        began = perf_counter()
        found = pending()
        waited(perf_counter() - began)
        return found

    return wait


def _is_predicted(earlier: PassRequest, queued: SpeculativePass, request: PassRequest) -> bool:
    """Return whether ``request`` equals the queued pass: the earlier windows with the predicted tokens."""
    if not np.array_equal(earlier.index_C, request.index_C):
        return False
    if not np.array_equal(earlier.states.starts_N, request.states.starts_N):
        return False
    offset_C, token_C = queued.predicted()
    tokens_CW = earlier.states.tokens_NW.copy()
    tokens_CW[np.arange(len(offset_C)), offset_C] = token_C
    return np.array_equal(tokens_CW, request.states.tokens_NW)


def next_rows(chains: Chains, request: PassRequest, temperature: float) -> NextRows:
    """Return the known part of the pass after ``request``; no chain may finish its block with ``request``.

    Every chain reveals one of its rows. An adaptive chain then requests its other rows again; a static chain
    requests the next position of its path.
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
    """Decides whether speculation pays, from times in seconds.

    Speculation hides the host's wait for the device, but costs the host more than a plain start. It pays if
    the hidden wait is longer than this extra cost. The gate measures both in trial passes without
    speculation: at the start of a batch, and after a block in which the device mostly finished before the
    host. The times decide when a number is computed, never its value.
    """

    def __init__(self) -> None:
        self._trials_left = TRIAL_PASSES
        self._start_seconds = self._speculation_seconds = math.inf
        self._pays = True
        self._idle_waits = self._waits = 0

    def started(self, seconds: float) -> bool:
        """Add the host time of a pass started without speculation; return whether to speculate next."""
        self._start_seconds = min(self._start_seconds, seconds)
        if 2 * self._idle_waits > self._waits:
            self._trials_left = TRIAL_PASSES
        self._idle_waits = self._waits = 0
        return self._pays and not self._trials_left

    def speculated(self, seconds: float) -> None:
        """Add the host time of one speculation."""
        self._speculation_seconds = min(self._speculation_seconds, seconds)

    def waited(self, seconds: float) -> None:
        """Add the wait for a pass without speculation before or after it."""
        self._trials_left = max(0, self._trials_left - 1)
        known = not math.isinf(self._speculation_seconds)
        extra_cost = self._speculation_seconds - self._start_seconds if known else 0.0
        self._pays = seconds > extra_cost

    def waited_for_speculation(self, seconds: float) -> None:
        """Add the wait for a speculative pass."""
        self._waits += 1
        self._idle_waits += seconds < IDLE_SECONDS
