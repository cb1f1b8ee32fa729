"""What rules ask for by name beyond the position statistics, answered before they choose.

Each answer is one number per masked position:

``kl_previous``: KL(p now ‖ p in the pass before) in nats, made by the head; inf in a block's first pass.
``planned_passes``: passes that the commit rule plans for the block.
``entropy_after``: mean entropy of what is still masked once the position holds its best token, one more state
    each. Only a look-ahead order may ask for it; it names the positions to try, and those of all chains are
    evaluated together.
``token_logprobs``: no number but a function, ``view.logprob_of``: the log-probability of any token anywhere.

For ``kl_previous`` the rows of a policy's last pass are kept per chain and offset: hidden states (on the
model's device), from which the head makes the earlier distribution again, or log-probabilities where a model
gives those. Rows are kept when a pass counts, so a pass that fails for lack of memory can be repeated; a
block starts with nothing kept, because a fixed text is scored with all its blocks side by side.

Shape letters: N chains of a call, B block size, R rows of a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from orderlens.decode.head import blank_rows, divergence, put_rows, take_rows, target_stats
from orderlens.errors import UserInputError
from orderlens.models.protocol import FloatArray, IntArray, Rows
from orderlens.rules.orders.protocol import LookaheadOrder
from orderlens.rules.policy import Policy
from orderlens.rules.stats import positions_of
from orderlens.rules.view import StepView


class RowHistory:
    """The last rows of every masked position of the chains that ask for it."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = n_chains, block_size
        self._kept_NB: IntArray | None = None  # pass at which the row was kept, −1 where none is
        self._slot_N: IntArray | None = None
        self._store: Rows | None = None
        self._n_slots = 0

    def forget(self, chains: IntArray) -> None:
        """The given chains enter a new block."""
        if self._kept_NB is not None:
            self._kept_NB[chains] = -1

    def compare(self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows) -> Compared:
        """Return KL(now ‖ the pass before) of every row, and the rows as something that can be kept."""
        if self._kept_NB is None:
            self._kept_NB, self._slot_N = np.full(self._shape, -1), np.full(self._shape[0], -1)
        kl_R = np.full(len(chain_R), np.inf)
        known = np.flatnonzero((pass_R > 0) & (self._kept_NB[chain_R, offset_R] == pass_R - 1))
        if len(known):
            assert self._store is not None
            before = take_rows(self._store, self._places(chain_R[known], offset_R[known]))
            kl_R[known] = divergence(take_rows(rows, known), before)
        self._make_room(
            np.unique(chain_R), rows
        )  # now: once a pass counts it must not fail for lack of memory
        return Compared(self, chain_R, offset_R, pass_R, rows, kl_R)

    def keep(self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows) -> None:
        """Keep the rows of a pass that counts."""
        assert self._kept_NB is not None
        assert self._store is not None
        put_rows(self._store, self._places(chain_R, offset_R), rows)
        self._kept_NB[chain_R, offset_R] = pass_R

    def _places(self, chain_R: IntArray, offset_R: IntArray) -> IntArray:
        assert self._slot_N is not None
        places: IntArray = self._slot_N[chain_R] * self._shape[1] + offset_R
        return places

    def _make_room(self, chains: IntArray, rows: Rows) -> None:
        assert self._slot_N is not None
        new = chains[self._slot_N[chains] < 0]
        if not len(new):
            return
        self._slot_N[new] = self._n_slots + np.arange(len(new))
        grown = blank_rows(rows, (self._n_slots + len(new)) * self._shape[1])
        if self._store is not None:
            put_rows(grown, np.arange(self._n_slots * self._shape[1]), self._store)
        self._store, self._n_slots = grown, self._n_slots + len(new)


@dataclass(frozen=True, slots=True)
class Compared:
    """One pass beside the one before it.

    Attributes:
        kl_R: KL divergence in nats of this pass from the pass before; inf in a block's first pass.
    """

    history: RowHistory
    chain_R: IntArray
    offset_R: IntArray
    pass_R: IntArray
    rows: Rows
    kl_R: FloatArray

    def commit(self) -> None:
        """Keep this pass's rows; the decoder calls this once the pass counts."""
        self.history.keep(self.chain_R, self.offset_R, self.pass_R, self.rows)


KNOWN = ("entropy_after", "kl_previous", "planned_passes", "token_logprobs")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the decoder gets the answers.

    Attributes:
        rows: gives what the model said at the view's rows.
        look: takes rows of the view to try; returns the mean entropy of what is masked after each of them.
    """

    rows: Callable[[], Rows]
    look: Callable[[IntArray], FloatArray]

    def logprob_of(self, row_K: IntArray, token_K: IntArray) -> FloatArray:
        """Return the log-probability of a token at each of the given rows of the view."""
        return target_stats(take_rows(self.rows(), row_K), (), token_K).target_logprob


class Kept(Protocol):
    """What is remembered once a pass counts."""

    def commit(self) -> None:
        """Remember it."""
        ...


def answered(
    policy: Policy, view: StepView[Any], history: RowHistory, chain_C: IntArray, source: Source | None
) -> tuple[StepView[Any], list[Kept]]:
    """Return the view with everything that the policy's rules ask for, and what is to be kept of it."""
    if unknown := policy.needs - set(KNOWN):
        raise UserInputError(
            f"policy '{policy.spec}' asks for '{min(unknown)}', which the decoder does not know; "
            f"known: {', '.join(KNOWN)}"
        )
    answers: dict[str, FloatArray] = {}
    kept: list[Kept] = []
    if "planned_passes" in policy.needs:
        planned_C = [policy.commit.planned_passes(int(n)) for n in view.filling_C]
        answers["planned_passes"] = np.array(planned_C, np.float64)[view.chain_R]
    if "kl_previous" in policy.needs:
        assert source is not None
        chain_R, pass_R = chain_C[view.chain_R], view.forward_C[view.chain_R]
        compared = history.compare(chain_R, view.offset_R, pass_R, source.rows())
        answers["kl_previous"] = compared.kl_R
        kept.append(compared)
    if "entropy_after" in policy.needs:
        assert source is not None
        answers["entropy_after"] = _after(policy, view.asking(answers), source)
    logprob_of = source.logprob_of if source and "token_logprobs" in policy.needs else None
    return view.asking(answers, logprob_of), kept


def _after(policy: Policy, view: StepView[Any], source: Source) -> FloatArray:
    """Look ahead at the order's candidates; a chain's only candidate needs no look and counts as 0."""
    order = policy.order
    if not isinstance(order, LookaheadOrder):
        raise UserInputError(f"policy '{policy.spec}': only a look-ahead order may ask for 'entropy_after'")
    tried_R = np.asarray(order.candidates(view.seeing(positions_of(view.stats))), bool)
    several_C = np.bincount(view.chain_R[tried_R], minlength=len(view.block_C)) > 1
    after_R = np.where(tried_R, 0.0, np.nan)
    rows = np.flatnonzero(tried_R & several_C[view.chain_R])
    if len(rows):
        after_R[rows] = source.look(rows)
    return after_R
