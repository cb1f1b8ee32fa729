"""What rules ask for by name beyond the position statistics, answered before they choose.

Each answer is one number per masked position:

``kl_previous``: KL(p now ‖ p in the pass before) in nats, made by the head; inf in a block's first pass.
``planned_passes``: passes that the commit rule plans for the block.
``entropy_after``: mean entropy of what is still masked once the position holds its best token, one more state
    each. Only a look-ahead order may ask for it; it names the positions to try, and those of all chains are
    evaluated together.
``token_logprobs``: no number but a function, ``view.logprob_of``: the log-probability of any token anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from orderlens.decode.head import take_rows, target_stats
from orderlens.decode.history import RowHistory
from orderlens.errors import UserInputError
from orderlens.models.protocol import FloatArray, IntArray, Rows
from orderlens.orders.protocol import LookaheadOrder
from orderlens.orders.view import StepView
from orderlens.policies.policy import Policy
from orderlens.stats import positions_of

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
