"""Extra inputs that rules request by name, in addition to the position statistics.

They are computed before the rules choose. Each is one number per masked position:

``kl_previous``: KL(p now ‖ p in the previous pass) in nats; inf in a block's first pass.
``planned_passes``: number of passes that the commit rule plans for the block.
``AFTER``: sums over the positions that stay masked after the position takes its most probable token. They
    cost one more state per position. Only a look-ahead order may request them; the order names the positions
    to try, and the states of all chains are evaluated in one batch.
``entropy_after_sets``: not a number but a function, ``view.entropy_after``, for commit rules: the mean
    entropy of what stays masked after a set of positions is filled, one more state per set. The tokens are
    those that the pass would commit: drawn ones at T > 0.
``token_logprobs``: not a number but a function, ``view.logprob_of``: the log-probability of any token at any
    masked position.

``kl_previous`` needs the rows of the policy's last pass, stored per chain and offset. They are hidden states
on the model's device, or log-probabilities for a model that returns those. Rows are stored only after a pass
has succeeded, so a pass that runs out of memory can be repeated. Every block starts without stored rows,
because fixed-sequence scoring processes all blocks of a text in parallel.

``remaining_stats`` and ``leave_one_out_logprobs`` evaluate look-ahead states.

Shape letters: N chains of a call, B block size, R rows of a pass, K states to try, W window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.batches import BatchLimit, run_in_batches
from orderlens.decode.head import blank_rows, divergence, position_stats, put_rows, take_rows, target_stats
from orderlens.errors import UserInputError
from orderlens.models.protocol import FloatArray, IntArray, Model, Rows, Session, StateBatch
from orderlens.rules.orders import AFTER, LookaheadOrder
from orderlens.rules.policy import Policy
from orderlens.rules.protocol import AFTER_SETS
from orderlens.rules.stats import positions_of
from orderlens.rules.view import MemoryTable, StepView

EXTRA_INPUTS = tuple(sorted((*AFTER, AFTER_SETS, "kl_previous", "planned_passes", "token_logprobs")))
STATES_PER_CALL = 256
"""Maximum number of look-ahead states per call, so that they need little more memory than the pass itself."""


class RowHistory:
    """The rows of the last pass at every masked position, for chains whose policy needs them."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = n_chains, block_size
        self._stored_pass_NB: IntArray | None = None  # pass of the stored row, −1 without one
        self._slot_N: IntArray | None = None
        self._store: Rows | None = None
        self._n_slots = 0

    def forget(self, chains: IntArray) -> None:
        """Start the given chains afresh: they enter a new block."""
        if self._stored_pass_NB is not None:
            self._stored_pass_NB[chains] = -1

    def compare(
        self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows
    ) -> tuple[FloatArray, Callable[[], None]]:
        """Return KL(now ‖ previous pass) of every row in nats, and a callback that stores the rows.

        The callback is called once the pass has succeeded. KL is inf in a block's first pass.
        """
        if self._stored_pass_NB is None:
            self._stored_pass_NB, self._slot_N = np.full(self._shape, -1), np.full(self._shape[0], -1)
        kl_R = np.full(len(chain_R), np.inf)
        known = np.flatnonzero((pass_R > 0) & (self._stored_pass_NB[chain_R, offset_R] == pass_R - 1))
        if len(known):
            assert self._store is not None
            previous = take_rows(self._store, self._places(chain_R[known], offset_R[known]))
            kl_R[known] = divergence(take_rows(rows, known), previous)
        self._allocate(np.unique(chain_R), rows)  # now: the callback must not run out of memory
        return kl_R, lambda: self._put(chain_R, offset_R, pass_R, rows)

    def _put(self, chain_R: IntArray, offset_R: IntArray, pass_R: IntArray, rows: Rows) -> None:
        assert self._stored_pass_NB is not None
        assert self._store is not None
        put_rows(self._store, self._places(chain_R, offset_R), rows)
        self._stored_pass_NB[chain_R, offset_R] = pass_R

    def _places(self, chain_R: IntArray, offset_R: IntArray) -> IntArray:
        assert self._slot_N is not None
        places: IntArray = self._slot_N[chain_R] * self._shape[1] + offset_R
        return places

    def _allocate(self, chains: IntArray, rows: Rows) -> None:
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
    """The memory of a policy's rules over all chains of a call, and the rows of its last passes."""

    order: MemoryTable
    commit: MemoryTable
    revise: MemoryTable
    rows: RowHistory

    @classmethod
    def empty(cls, n_chains: int, block_size: int) -> PolicyMemory:
        """Return empty memory tables."""
        order, commit, revise = (MemoryTable(n_chains, block_size) for _ in range(3))
        return cls(order, commit, revise, RowHistory(n_chains, block_size))

    def forget(self, chains: IntArray) -> None:
        """Start the given chains afresh: they enter a new block."""
        for table in (self.order, self.commit, self.revise, self.rows):
            table.forget(chains)


@dataclass(frozen=True, slots=True)
class Remaining:
    """The positions that stay masked in look-ahead states, at least one per state.

    Attributes:
        state_r: state of each position, never decreasing.
        logprob_r: log-probability of its most probable token, y.
        entropy_r: its entropy in nats.
    """

    state_r: IntArray
    logprob_r: FloatArray
    entropy_r: FloatArray

    def sums(self, value: Callable[[FloatArray], FloatArray]) -> dict[str, FloatArray]:
        """Return the numbers called ``AFTER``, one per state; ``value`` is the order's function of y."""
        y_r, count_K = self.logprob_r, np.bincount(self.state_r).astype(np.float64)
        first_K = np.searchsorted(self.state_r, np.arange(len(count_K)))
        return {
            "n_after": count_K,
            "entropy_after": np.bincount(self.state_r, self.entropy_r) / count_K,
            "logprob_after": np.bincount(self.state_r, y_r),
            "square_after": np.bincount(self.state_r, y_r * y_r),
            "least_after": np.minimum.reduceat(y_r, first_K),
            "value_after": np.bincount(self.state_r, value(y_r)),
        }


LookAhead: TypeAlias = Callable[[IntArray, bool], Remaining]
"""Takes K sets of k rows each [K, k], and whether to fill them with drawn tokens (if any) instead of
the most probable ones; returns what stays masked after each set."""


@dataclass(frozen=True, slots=True)
class ExtraSource:
    """The source of the extra inputs of one pass.

    Attributes:
        rows: returns the model's rows at the view's positions.
        look_ahead: takes the sets of rows of the view to try.
    """

    rows: Callable[[], Rows]
    look_ahead: LookAhead

    def logprob_of(self, row_K: IntArray, token_K: IntArray) -> FloatArray:
        """Return the log-probability of a token at each of the given rows of the view."""
        return target_stats(take_rows(self.rows(), row_K), (), token_K).target_logprob

    def entropy_after(self, tried_Kk: IntArray) -> FloatArray:
        """Return the mean entropy [K] of what stays masked after each set of rows of the view is filled."""
        return self.look_ahead(tried_Kk, True).sums(np.zeros_like)["entropy_after"]


def with_extras(
    policy: Policy, view: StepView[Any], history: RowHistory, chain_C: IntArray, source: ExtraSource | None
) -> tuple[StepView[Any], list[Callable[[], None]]]:
    """Return the view with the extra inputs of the policy's rules, and callbacks for a successful pass."""
    if unknown := policy.needs - set(EXTRA_INPUTS):
        raise UserInputError(
            f"policy '{policy.spec}' requests the unknown extra input '{min(unknown)}'; "
            f"available: {', '.join(EXTRA_INPUTS)}"
        )
    extras: dict[str, FloatArray] = {}
    on_commit: list[Callable[[], None]] = []
    if "planned_passes" in policy.needs:
        planned_C = [policy.commit.planned_passes(int(n)) for n in view.filling_C]
        extras["planned_passes"] = np.array(planned_C, np.float64)[view.chain_R]
    if "kl_previous" in policy.needs:
        assert source is not None
        chain_R, pass_R = chain_C[view.chain_R], view.forward_C[view.chain_R]
        extras["kl_previous"], store_rows = history.compare(chain_R, view.offset_R, pass_R, source.rows())
        on_commit.append(store_rows)
    if policy.needs & AFTER:
        assert source is not None
        extras |= _after(policy, view.with_extras(extras), source)
    logprob_of = source.logprob_of if source and "token_logprobs" in policy.needs else None
    entropy_after = source.entropy_after if source and AFTER_SETS in policy.needs else None
    return view.with_extras(extras, logprob_of, entropy_after), on_commit


def _after(policy: Policy, view: StepView[Any], source: ExtraSource) -> dict[str, FloatArray]:
    """Return ``AFTER`` of the order's candidates; 0 for the only candidate of a chain."""
    order = policy.order
    if not isinstance(order, LookaheadOrder):
        name = min(policy.needs & AFTER)
        raise UserInputError(
            f"order '{order.spec}' requests '{name}'; only a look-ahead order may request it"
        )
    tried_R = np.asarray(order.candidates(view.seeing(positions_of(view.stats))), bool)
    several_C = np.bincount(view.chain_R[tried_R], minlength=len(view.block_C)) > 1
    after = {name: np.where(tried_R, 0.0, np.nan) for name in AFTER}
    rows = np.flatnonzero(tried_R & several_C[view.chain_R])
    if len(rows):
        for name, values_K in source.look_ahead(rows[:, None], False).sums(order.value).items():
            after[name][rows] = values_K
    return after


def remaining_stats(
    model: Model,
    session: Session,
    slots_K: IntArray,
    starts_K: IntArray,
    tokens_KW: IntArray,
    wanted_KW: NDArray[np.bool_],
) -> Remaining:
    """Return the statistics of the wanted positions of K states.

    Args:
        model: names the EOS ids.
        session: holds the prefixes.
        slots_K: the prefix of each state.
        starts_K: position of its window's first token.
        tokens_KW: the windows, mask id where hidden.
        wanted_KW: the positions to look at, at least one per state.
    """
    state_r, _ = np.nonzero(wanted_KW)
    found = Remaining(state_r, np.zeros(len(state_r)), np.zeros(len(state_r)))

    def work(k: IntArray) -> None:
        state_R, offset_R = np.nonzero(wanted_KW[k])
        batch = StateBatch(slots_K[k], starts_K[k], tokens_KW[k], state_R, offset_R)
        stats = position_stats(session.evaluate(batch), model.eos_ids)
        own = slice(*np.searchsorted(state_r, [k[0], k[-1] + 1]))
        found.logprob_r[own], found.entropy_r[own] = stats.top_logprob, stats.entropy

    in_batches(model, len(slots_K), work)
    return found


def leave_one_out_logprobs(
    model: Model,
    session: Session,
    slots_K: IntArray,
    starts_K: IntArray,
    tokens_KW: IntArray,
    offset_K: IntArray,
) -> FloatArray:
    """Return the log-probability [K] of the token at ``offset_K`` of each window, with only it masked."""
    logprob_K = np.zeros(len(slots_K))
    index_K = np.arange(len(slots_K))
    token_K = tokens_KW[index_K, offset_K]
    hidden_KW = tokens_KW.copy()
    hidden_KW[index_K, offset_K] = model.mask_id

    def work(k: IntArray) -> None:
        batch = StateBatch(slots_K[k], starts_K[k], hidden_KW[k], np.arange(len(k)), offset_K[k])
        logprob_K[k] = target_stats(session.evaluate(batch), model.eos_ids, token_K[k]).target_logprob

    in_batches(model, len(slots_K), work)
    return logprob_K


def in_batches(model: Model, n_states: int, work: Callable[[IntArray], None]) -> None:
    """Call ``work`` on all states, in batches that fit in memory."""
    run_in_batches(
        BatchLimit(STATES_PER_CALL),
        model,
        range(n_states),
        lambda part: work(np.asarray(part)),
        lambda _: "a look-ahead state",
    )
