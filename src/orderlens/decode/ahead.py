"""States that are evaluated only to be looked at: how uncertain the rest would be after one more token.

Shape letters: K states to try, W window, R rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.batches import BatchLimit, run_within
from orderlens.decode.head import position_stats, target_stats
from orderlens.models.protocol import FloatArray, IntArray, Model, Session, StateBatch

STATES_AT_ONCE = 256
"""Most states evaluated together, so that looking ahead needs little more memory than the pass itself; fewer
where memory runs out, down to one."""


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
