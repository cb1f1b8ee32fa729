"""``PositionStats``: the narrow waist between models and orders.

One entry per masked position. Orders and traces see these few numbers and never a vocabulary axis. All
log-probabilities are natural logs at temperature 1, normalised over the tokens that may be revealed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orderlens.errors import ModelOutputError

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PositionStats:
    """What a deployable order may see, for R masked positions (all arrays are [R]).

    Attributes:
        top_token: most probable token (the lowest id among equals).
        top_logprob: its log-probability.
        second_logprob: log-probability of the runner-up.
        entropy: Shannon entropy in nats.
        eos_logprob: log of the total probability of the EOS ids (−inf when there are none).
    """

    top_token: IntArray
    top_logprob: FloatArray
    second_logprob: FloatArray
    entropy: FloatArray
    eos_logprob: FloatArray

    def __len__(self) -> int:
        return len(self.top_token)

    def take(self, rows: IntArray) -> PositionStats:
        """Return the entries at ``rows``."""
        return PositionStats(
            self.top_token[rows],
            self.top_logprob[rows],
            self.second_logprob[rows],
            self.entropy[rows],
            self.eos_logprob[rows],
        )


@dataclass(frozen=True, slots=True)
class TargetStats:
    """What a target-aware order sees: the position statistics plus the target's, all [R].

    Attributes:
        positions: the statistics any order may see.
        target_logprob: log-probability of the target token.
        competitor_logprob: log-probability of the most probable other token.
    """

    positions: PositionStats
    target_logprob: FloatArray
    competitor_logprob: FloatArray

    @classmethod
    def beside(cls, positions: PositionStats, target: IntArray, target_logprob: FloatArray) -> TargetStats:
        """Attach the targets; the competitor is the top token, or the runner-up where that is the target."""
        is_top = positions.top_token == target
        competitor = np.where(is_top, positions.second_logprob, positions.top_logprob)
        return cls(positions, target_logprob, competitor)

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: IntArray) -> TargetStats:
        """Return the entries at ``rows``."""
        return TargetStats(
            self.positions.take(rows), self.target_logprob[rows], self.competitor_logprob[rows]
        )


@dataclass(frozen=True, slots=True)
class DrawStats:
    """What a sampling decoder sees: the position statistics plus one drawn token each, all [R].

    Attributes:
        positions: the statistics any order may see.
        token: the token drawn at the run's temperature.
        logprob: its log-probability at temperature 1.
        tempered_logprob: its log-probability at the run's temperature.
    """

    positions: PositionStats
    token: IntArray
    logprob: FloatArray
    tempered_logprob: FloatArray

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: IntArray) -> DrawStats:
        """Return the entries at ``rows``."""
        return DrawStats(
            self.positions.take(rows), self.token[rows], self.logprob[rows], self.tempered_logprob[rows]
        )


def comparable(values: ArrayLike) -> FloatArray:
    """Return numbers to about 12 digits, so that the same sum taken in another order compares as equal.

    Rows that are permutations of each other tie, and p = 0.9 reaches 0.9 although exp(log 0.9) need not. What
    is rounded away are the last 12 bits of a float64, relative to its size: numbers near 0 stay apart, and
    float32 numbers, which do not have these bits, stay as they are.
    """
    numbers = np.asarray(values, np.float64)
    bits = (numbers if numbers.ndim else numbers[None]).view(np.int64)
    rounded: FloatArray = ((bits + 0x800) & ~0xFFF).view(np.float64)
    return rounded if numbers.ndim else rounded[0]


@dataclass(frozen=True, slots=True)
class Heat:
    """How tokens are drawn.

    Attributes:
        temperature: positive.
        uniforms_R: one number in [0, 1) per row; the draw is a function of it and of the row alone. For rows
            of a torch model also a tensor on their device.
    """

    temperature: float
    uniforms_R: FloatArray | Any


@dataclass(frozen=True, slots=True)
class RowStats:
    """What is known of R rows.

    Attributes:
        positions: what a deployable order may see.
        target_logprob: of each row's target, where targets were given.
        draws: one drawn token per row, where ``Heat`` was given.
    """

    positions: PositionStats
    target_logprob: FloatArray | None = None
    draws: DrawStats | None = None


Answer: TypeAlias = Callable[[], RowStats]
"""Waits for what was asked; to be called once."""


def positions_of(stats: PositionStats | TargetStats | DrawStats) -> PositionStats:
    """Return the statistics that any order may see."""
    return stats if isinstance(stats, PositionStats) else stats.positions


def require_finite_rows(bad_R: BoolArray) -> None:
    """Raise when any row is NaN or has no finite entry."""
    if bad_R.any():
        raise ModelOutputError(
            f"the model returned NaN or all −inf at {int(bad_R.sum())} of {len(bad_R)} requested positions; "
            "check the weights and dtype, or that the revealed text is possible under the model"
        )
