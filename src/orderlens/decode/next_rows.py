"""Which rows the next pass will want, as far as the host can say before anything is chosen.

Every chain reveals one of its rows. A chain that compares its rows asks about the others again; a static one
asks about the next position of its path.

Shape letters: C chains of the batch, W window, R rows of this pass, r rows of the next one, A places that the
next pass may ask about, S static chains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.decode.chains import Chains
from orderlens.decode.passes import Asked
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.orders.protocol import Reading


@dataclass(frozen=True, slots=True)
class NextRows:
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


def next_rows(
    chains: Chains, asked: Asked, temperature: float, readings: list[Reading], kind_R: IntArray | None
) -> NextRows:
    """Return what is known of the pass behind ``asked``; no chain may finish its block with this one."""
    index_C, chain_R = asked.index_C, asked.chain_R
    count, width = asked.states.tokens_NW.shape
    static_C = np.array([policy.is_static for policy in chains.policies])[chains.policy_N[index_C]]
    n_C = np.bincount(chain_R, minlength=count)
    first_C = np.cumsum(n_C) - n_C
    kept_R = np.ones(len(chain_R), bool)
    kept_R[first_C + n_C - 1] = static_C  # one row fewer, but for static chains another one
    base_r = np.flatnonzero(kept_R)
    chain_r = chain_R[base_r]
    place_A, chain_A, offset_A = chain_R * width + asked.states.row_offset_R, chain_R, asked.offset_R
    if static_C.any():
        s = np.flatnonzero(static_C)
        due_SB = chains.rank_NB[index_C[s]] == chains.pass_N[index_C[s]][:, None] + 1
        offset_S = due_SB.argmax(axis=1)
        low_S = chains.start_N[index_C[s]] - asked.states.starts_N[s]
        base_r[static_C[chain_r]] = len(chain_R) - 1 + np.arange(len(s))  # behind every row: one more
        place_A = np.concatenate((place_A, s * width + low_S + offset_S))
        chain_A, offset_A = np.concatenate((chain_A, s)), np.concatenate((offset_A, offset_S))
    uniforms_A = None
    if temperature:
        uniforms_A = chains.draws.rows(index_C, chains.pass_N[index_C] + 1)[chain_A, offset_A]
    return NextRows(
        first_C, n_C, place_A, base_r, chain_r, readings, kind_R, width, temperature, uniforms_A
    )  # fmt: skip
