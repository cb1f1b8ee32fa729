"""``PositionStats`` and related types: the statistics that orders and rules receive from a model.

There is one entry per masked position and no vocabulary axis. All log-probabilities are natural logs at
temperature 1, normalised over the tokens that may be revealed.
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
    """Statistics of R masked positions that a deployable order may use (all arrays are [R]).

    Attributes:
        top_token: most probable token (the lowest id if several tie).
        top_logprob: its log-probability.
        second_logprob: log-probability of the runner-up.
        entropy: Shannon entropy in nats.
        eos_logprob: log of the total probability of the EOS ids (−inf if there are none).
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
    """Statistics for a target-aware order: the position statistics and those of the target, all [R].

    Attributes:
        positions: the statistics any order may see.
        target_logprob: log-probability of the target token.
        competitor_logprob: log-probability of the most probable other token.
    """

    positions: PositionStats
    target_logprob: FloatArray
    competitor_logprob: FloatArray

    @classmethod
    def from_target_logprob(
        cls, positions: PositionStats, target: IntArray, target_logprob: FloatArray
    ) -> TargetStats:
        """Add the targets; the competitor is the most probable token that is not the target."""
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
    """Statistics for a sampling decoder: the position statistics and one drawn token each, all [R].

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
    """Round numbers to about 12 digits, so that equal sums compare as equal in any order of summation.

    Rows that are permutations of each other then tie, and exp(log 0.9) reaches 0.9. The last 12 bits of a
    float64 are rounded, relative to its size: numbers near 0 stay distinct, and float32 numbers stay
    unchanged.
    """
    numbers = np.asarray(values, np.float64)
    bits = (numbers if numbers.ndim else numbers[None]).view(np.int64)
    rounded: FloatArray = ((bits + 0x800) & ~0xFFF).view(np.float64)
    return rounded if numbers.ndim else rounded[0]


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """Inputs of a draw: the temperature and one uniform number per row.

    Attributes:
        temperature: a positive number, or one per row [R].
        uniforms_R: one number in [0, 1) per row, which determines the draw. For a torch model it may be a
            tensor on the device of the rows.
    """

    temperature: float | FloatArray
    uniforms_R: FloatArray | Any


@dataclass(frozen=True, slots=True)
class RowStats:
    """Statistics of R rows.

    Attributes:
        positions: the position statistics.
        target_logprob: log-probability of each row's target, if targets were given.
        draws: one drawn token per row, if ``DrawInputs`` were given.
    """

    positions: PositionStats
    target_logprob: FloatArray | None = None
    draws: DrawStats | None = None


PendingStats: TypeAlias = Callable[[], RowStats]
"""Waits for the statistics of a started reduction; to be called once."""


def positions_of(stats: PositionStats | TargetStats | DrawStats) -> PositionStats:
    """Return the position statistics."""
    return stats if isinstance(stats, PositionStats) else stats.positions


def require_finite_rows(bad_R: BoolArray) -> None:
    """Refuse rows that are NaN or have no finite entry."""
    if bad_R.any():
        raise ModelOutputError(
            f"the model returned NaN or all −inf at {int(bad_R.sum())} of {len(bad_R)} requested positions; "
            "check the weights and dtype, or that the revealed text is possible under the model"
        )
