"""States that are evaluated only to be looked at: how uncertain the rest would be after one more token.

Shape letters: K states to try, W window, R rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.head import position_stats
from orderlens.models.protocol import FloatArray, IntArray, Model, Session, StateBatch

STATES_AT_ONCE = 256
"""Most states evaluated together, so that looking ahead needs little more memory than the pass itself."""


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
    found = []
    for low in range(0, len(slots_K), STATES_AT_ONCE):
        part = slice(low, low + STATES_AT_ONCE)
        state_R, offset_R = np.nonzero(wanted_KW[part])
        batch = StateBatch(slots_K[part], starts_K[part], tokens_KW[part], state_R, offset_R)
        stats = position_stats(session.evaluate(batch), model.eos_ids)
        count_K = np.bincount(state_R, minlength=len(slots_K[part]))
        found.append(np.bincount(state_R, stats.entropy, minlength=len(count_K)) / count_K)
    return np.concatenate(found)
