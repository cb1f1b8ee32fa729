"""The canvas while it fills, for somebody who watches. Knows token ids, not texts or screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains


@dataclass(frozen=True, slots=True)
class LiveCanvas:
    """One text as it stands.

    Attributes:
        sample_id: its sample.
        order: spec of its policy.
        forward: passes made so far.
        tokens: ids [L] of the positions to fill, from left to right.
        masked: which of them [L] are still masked.
    """

    sample_id: str
    order: str
    forward: int
    tokens: NDArray[np.int64]
    masked: NDArray[np.bool_]


Watch: TypeAlias = Callable[[Sequence[LiveCanvas]], None]
"""Is shown the texts of one sample, one per policy, whenever they got further."""


def live_canvases(chains: Chains) -> list[LiveCanvas]:
    """Return the texts of the first sample that is not finished, of the last one where all are."""
    left = [n for n, reason in enumerate(chains.reason) if reason is None]
    sample = chains.sample_N[left[0] if left else -1]
    return [_canvas(chains, int(n)) for n in np.flatnonzero(chains.sample_N == sample)]


def _canvas(chains: Chains, n: int) -> LiveCanvas:
    canvas = chains.canvases[n]
    tokens = chains.tokens_NL[n, canvas.prompt_length : canvas.requested_end].copy()
    return LiveCanvas(
        chains.samples[chains.sample_N[n]].id,
        chains.policies[chains.policy_N[n]].spec,
        int(chains.forward_N[n]),
        tokens,
        tokens == chains.mask_id,
    )
