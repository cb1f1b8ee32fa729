"""Guessing ahead: the next pass is queued on the device before the host has chosen.

While the host reads a pass's statistics, lets the policies choose and records, the device would wait. Where
every policy reveals one position per pass, by a number that the device has as well, the device guesses what
will be revealed and begins the next forward. If the host then asks for exactly that, the numbers are there or
on their way; if not, they are dropped and the pass is made as if nobody had guessed. So a guess changes when
something is computed, never what.

No guess is made in a pass that finishes a block: what follows depends on how the text goes on.

Shape letters: C chains of the batch, W window, R rows of the pass, r rows of the next one, A places that the
next pass may ask about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from orderlens.decode.chains import Chains
from orderlens.decode.passes import Asked
from orderlens.machine import is_out_of_memory
from orderlens.models.protocol import FloatArray, Foresees, IntArray, Rows, Session
from orderlens.orders.protocol import Reading
from orderlens.stats import Answer

PATIENCE = 8
"""Wrong guesses that are forgiven, and one more for as many right ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the host knows of the next pass before anything is chosen.

    Attributes:
        first_C: first row of each chain in this pass; the next chain's rows follow.
        n_C: its number of rows.
        place_A: places of this pass's rows, then those that static chains ask about next: chain × W + offset.
        base_r: of each row of the next pass, its place among ``place_A`` if the last row of its chain were
            chosen; where an earlier or equal one is, it is the next place.
        chain_r: its chain.
        readings: what scores are made of.
        kind_R: which of them counts at each row; None where there is one.
        width: W.
        temperature: of the draws.
        uniforms_A: the numbers behind the next pass's draws; None at T = 0.
    """

    first_C: IntArray
    n_C: IntArray
    place_A: IntArray
    base_r: IntArray
    chain_r: IntArray
    readings: list[Reading]
    kind_R: IntArray | None
    width: int
    temperature: float
    uniforms_A: FloatArray | None


@dataclass(frozen=True, slots=True)
class Queued:
    """A pass that is under way.

    Attributes:
        guess: waits for what was guessed: offset in the window and token of each chain.
        rows: what the model says then.
        answer: the same as statistics.
    """

    guess: Callable[[], tuple[IntArray, IntArray]]
    rows: Rows
    answer: Answer


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
        self._before: tuple[Asked, Queued] | None = None
        self._session = session if isinstance(session, Foresees) and session.foresees else None
        used = np.unique(chains.policy_N[members]).tolist()
        found = {p: chains.policies[p].foreseen_by(temperature) for p in used}
        self._readings = sorted({reading for reading in found.values() if reading is not None})
        if None in found.values():
            self._session = None
        self._kind_P = np.zeros(len(chains.policies), np.int64)
        for p, reading in found.items():
            self._kind_P[p] = self._readings.index(reading) if reading in self._readings else 0
        self._static_P = np.array([policy.is_static for policy in chains.policies])

    def find(self, asked: Asked) -> tuple[Rows, Answer] | None:
        """Return rows and statistics of what is asked, if they were queued already."""
        if self._before is None:
            return None
        (earlier, queued), self._before = self._before, None
        right = _same(earlier, queued, asked)
        self.taken, self.missed = self.taken + right, self.missed + (not right)
        if self.missed > PATIENCE + self.taken // PATIENCE:
            self._session = None
        return (queued.rows, queued.answer) if right else None

    def guess(self, asked: Asked, answer: Answer) -> None:
        """Queue the pass that probably follows ``asked``, whose statistics are ``answer``."""
        if self._session is None or np.count_nonzero(asked.open_CB, axis=1).min() < 2:
            return
        from orderlens.decode.guess_torch import queue

        try:
            queued = queue(self._session, answer, self._plan(asked), self._eos_ids)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            queued = None
        if queued is None:
            self._session = None  # it would be the same again
        else:
            self._before = asked, queued

    def _plan(self, asked: Asked) -> Plan:
        chains, index_C, chain_R = self._chains, asked.index_C, asked.chain_R
        count, width = asked.states.tokens_NW.shape
        policy_C = chains.policy_N[index_C]
        static_C = self._static_P[policy_C]
        n_C = np.bincount(chain_R, minlength=count)
        first_C = np.cumsum(n_C) - n_C
        kept_R = np.ones(len(chain_R), bool)
        kept_R[first_C + n_C - 1] = static_C  # one row fewer, but for static chains another one
        base_r = np.flatnonzero(kept_R)
        chain_r = chain_R[base_r]
        place_A, chain_A, offset_A = chain_R * width + asked.states.row_offset_R, chain_R, asked.offset_R
        if static_C.any():
            (s,) = np.nonzero(static_C)
            due_SB = chains.rank_NB[index_C[s]] == chains.pass_N[index_C[s]][:, None] + 1
            offset_S = due_SB.argmax(axis=1)
            low_S = chains.start_N[index_C[s]] - asked.states.starts_N[s]
            base_r[static_C[chain_r]] = len(chain_R) - 1 + np.arange(len(s))  # behind every row: one more
            place_A = np.concatenate((place_A, s * width + low_S + offset_S))
            chain_A, offset_A = np.concatenate((chain_A, s)), np.concatenate((offset_A, offset_S))
        uniforms_A = None
        if self._temperature:
            numbers_CB = chains.draws.rows(index_C, chains.pass_N[index_C] + 1)
            uniforms_A = numbers_CB[chain_A, offset_A]
        kind_R = self._kind_P[policy_C][chain_R] if len(self._readings) > 1 else None
        return Plan(
            first_C, n_C, place_A, base_r, chain_r, self._readings, kind_R, width, self._temperature,
            uniforms_A,
        )  # fmt: skip


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
