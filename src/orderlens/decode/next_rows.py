"""Which rows the next pass will want, as far as the host can say before anything is chosen.

Every chain reveals one of its rows. A chain that compares its rows asks about the others again; a static one
asks about the next position of its path.

Shape letters: C chains of the batch, W window, R rows of this pass, A places that the next pass may ask
about, S static chains.
"""

from __future__ import annotations

import numpy as np

from orderlens.decode.chains import Chains
from orderlens.decode.passes import Asked, NextRows


def next_rows(chains: Chains, asked: Asked, temperature: float) -> NextRows:
    """Return what is known of the pass behind ``asked``; no chain may finish its block with this one."""
    index_C, chain_R = asked.index_C, asked.chain_R
    count, width = asked.states.tokens_NW.shape
    static_C = np.array([policy.is_static for policy in chains.policies])[chains.policy_N[index_C]]
    n_C = np.bincount(chain_R, minlength=count)
    fixed_C = np.full(count, -1)
    place_A, chain_A, offset_A = chain_R * width + asked.states.row_offset_R, chain_R, asked.offset_R
    if static_C.any():
        s = np.flatnonzero(static_C)
        due_SB = chains.rank_NB[index_C[s]] == chains.pass_N[index_C[s]][:, None] + 1
        offset_S = due_SB.argmax(axis=1)
        low_S = chains.start_N[index_C[s]] - asked.states.starts_N[s]
        fixed_C[s] = len(chain_R) + np.arange(len(s))
        place_A = np.concatenate((place_A, s * width + low_S + offset_S))
        chain_A, offset_A = np.concatenate((chain_A, s)), np.concatenate((offset_A, offset_S))
    uniforms_A = None
    if temperature:
        uniforms_A = chains.draws.rows(index_C, chains.pass_N[index_C] + 1)[chain_A, offset_A]
    return NextRows(np.cumsum(n_C) - n_C, n_C, fixed_C, place_A, width, temperature, uniforms_A)
