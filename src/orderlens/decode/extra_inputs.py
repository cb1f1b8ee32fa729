"""Extra inputs: what rules request by name beyond the position statistics, made before they choose.

Each is one number per masked position:

``kl_previous``: KL(p now ‖ p in the pass before) in nats, made by the head; inf in a block's first pass.
``planned_passes``: passes that the commit rule plans for the block.
``entropy_after``: mean entropy of what is still masked once the position holds its best token, one more state
    each. Only a look-ahead order may request it; it names the positions to try, and those of all chains are
    evaluated together.
``token_logprobs``: no number but a function, ``view.logprob_of``: the log-probability of any token anywhere.

For ``kl_previous`` the rows of a policy's last pass are kept per chain and offset: hidden states (on the
model's device), from which the head makes the earlier distribution again, or log-probabilities where a model
gives those. Rows are kept when a pass counts, so a pass that fails for lack of memory can be repeated; a
block starts with nothing kept, because a fixed text is scored with all its blocks side by side.

``mean_entropies`` and ``hidden_logprobs`` evaluate look-ahead states.

Shape letters: N chains of a call, B block size, R rows of a pass, K states to try, W window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.batches import BatchLimit, run_within
from orderlens.decode.head import blank_rows, divergence, position_stats, put_rows, take_rows, target_stats
from orderlens.errors import UserInputError
from orderlens.models.protocol import FloatArray, IntArray, Model, Rows, Session, StateBatch
from orderlens.rules.orders.protocol import LookaheadOrder
from orderlens.rules.policy import Policy
from orderlens.rules.stats import positions_of
from orderlens.rules.view import MemoryTable, StepView

KNOWN = ("entropy_after", "kl_previous", "planned_passes", "token_logprobs")
STATES_AT_ONCE = 256
"""Most states evaluated together, so that looking ahead needs little more memory than the pass itself; fewer
where memory runs out, down to one."""


class RowHistory:
    """The last rows of every masked position of the chains that ask for it."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = n_chains, block_size
        self._kept_NB: IntArray | None = None  # pass at which the row was kept, −1 where none is
        self._slot_N: IntArray | None = None
        self._store: Rows | None = None
        self._n_slots = 0

    def forget(self, chains: IntArray) -> None:
        """Start the given chains afresh: they enter a new block."""
        if self._kept_NB is not None:
            self._kept_NB[chains] = -1

    def compare(
        self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows
    ) -> tuple[FloatArray, Callable[[], None]]:
        """Return KL(now ‖ the pass before) of every row in nats, and what keeps the rows once a pass counts.

        KL is inf in a block's first pass.
        """
        if self._kept_NB is None:
            self._kept_NB, self._slot_N = np.full(self._shape, -1), np.full(self._shape[0], -1)
        kl_R = np.full(len(chain_R), np.inf)
        known = np.flatnonzero((pass_R > 0) & (self._kept_NB[chain_R, offset_R] == pass_R - 1))
        if len(known):
            assert self._store is not None
            before = take_rows(self._store, self._places(chain_R[known], offset_R[known]))
            kl_R[known] = divergence(take_rows(rows, known), before)
        self._make_room(np.unique(chain_R), rows)  # now: keeping must not fail for lack of memory
        return kl_R, lambda: self._keep(chain_R, offset_R, pass_R, rows)

    def _keep(self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows) -> None:
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
class PolicyMemory:
    """The memories of a policy's rules over all chains of a call, and the rows of its last passes."""

    order: MemoryTable
    commit: MemoryTable
    revise: MemoryTable
    rows: RowHistory

    @classmethod
    def empty(cls, n_chains: int, block_size: int) -> PolicyMemory:
        """Return memories with nothing in them."""
        order, commit, revise = (MemoryTable(n_chains, block_size) for _ in range(3))
        return cls(order, commit, revise, RowHistory(n_chains, block_size))

    def forget(self, chains: IntArray) -> None:
        """Start the given chains afresh: they enter a new block."""
        for table in (self.order, self.commit, self.revise, self.rows):
            table.forget(chains)


@dataclass(frozen=True, slots=True)
class ExtraSource:
    """Where the decoder gets the extra inputs of one pass.

    Attributes:
        rows: gives what the model said at the view's rows.
        look: takes rows of the view to try; returns the mean entropy of what is masked after each of them.
    """

    rows: Callable[[], Rows]
    look: Callable[[IntArray], FloatArray]

    def logprob_of(self, row_K: IntArray, token_K: IntArray) -> FloatArray:
        """Return the log-probability of a token at each of the given rows of the view."""
        return target_stats(take_rows(self.rows(), row_K), (), token_K).target_logprob


def with_extras(
    policy: Policy, view: StepView[Any], history: RowHistory, chain_C: IntArray, source: ExtraSource | None
) -> tuple[StepView[Any], list[Callable[[], None]]]:
    """Return the view with every extra input of the policy's rules, and what to call once the pass counts."""
    if unknown := policy.needs - set(KNOWN):
        raise UserInputError(
            f"policy '{policy.spec}' asks for '{min(unknown)}', which the decoder does not know; "
            f"known: {', '.join(KNOWN)}"
        )
    extras: dict[str, FloatArray] = {}
    on_commit: list[Callable[[], None]] = []
    if "planned_passes" in policy.needs:
        planned_C = [policy.commit.planned_passes(int(n)) for n in view.filling_C]
        extras["planned_passes"] = np.array(planned_C, np.float64)[view.chain_R]
    if "kl_previous" in policy.needs:
        assert source is not None
        chain_R, pass_R = chain_C[view.chain_R], view.forward_C[view.chain_R]
        extras["kl_previous"], keep = history.compare(chain_R, view.offset_R, pass_R, source.rows())
        on_commit.append(keep)
    if "entropy_after" in policy.needs:
        assert source is not None
        extras["entropy_after"] = _after(policy, view.with_extras(extras), source)
    logprob_of = source.logprob_of if source and "token_logprobs" in policy.needs else None
    return view.with_extras(extras, logprob_of), on_commit


def _after(policy: Policy, view: StepView[Any], source: ExtraSource) -> FloatArray:
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


def mean_entropies(
    model: Model,
    session: Session,
    slots_K: IntArray,
    starts_K: IntArray,
    tokens_KW: IntArray,
    wanted_KW: NDArray[np.bool_],
) -> FloatArray:
    """Return the mean entropy [K] in nats over the wanted positions of each state.

    Args:
        model: names the EOS ids.
        session: holds the prefixes.
        slots_K: the prefix of each state.
        starts_K: position of its window's first token.
        tokens_KW: the windows, mask id where hidden.
        wanted_KW: the positions to average over, at least one per state.
    """
    mean_K = np.zeros(len(slots_K))

    def work(k: IntArray) -> None:
        state_R, offset_R = np.nonzero(wanted_KW[k])
        batch = StateBatch(slots_K[k], starts_K[k], tokens_KW[k], state_R, offset_R)
        stats = position_stats(session.evaluate(batch), model.eos_ids)
        total_k = np.bincount(state_R, stats.entropy, minlength=len(k))
        mean_K[k] = total_k / np.bincount(state_R, minlength=len(k))

    _in_parts(model, len(slots_K), work)
    return mean_K


def hidden_logprobs(
    model: Model,
    session: Session,
    slots_K: IntArray,
    starts_K: IntArray,
    tokens_KW: IntArray,
    offset_K: IntArray,
) -> FloatArray:
    """Return the log-probability [K] of the token at ``offset_K`` of each window where it alone is masked."""
    logprob_K = np.zeros(len(slots_K))
    each_K = np.arange(len(slots_K))
    token_K = tokens_KW[each_K, offset_K]
    hidden_KW = tokens_KW.copy()
    hidden_KW[each_K, offset_K] = model.mask_id

    def work(k: IntArray) -> None:
        batch = StateBatch(slots_K[k], starts_K[k], hidden_KW[k], np.arange(len(k)), offset_K[k])
        logprob_K[k] = target_stats(session.evaluate(batch), model.eos_ids, token_K[k]).target_logprob

    _in_parts(model, len(slots_K), work)
    return logprob_K


def _in_parts(model: Model, count: int, work: Callable[[IntArray], None]) -> None:
    """Do ``work`` for all states, as many at once as fit."""
    run_within(
        BatchLimit(STATES_AT_ONCE),
        model,
        range(count),
        lambda part: work(np.asarray(part)),
        lambda _: "a state that is tried ahead",
    )
