"""Two columns on the same texts: difference, interval, wins, p of flipping signs. Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orderlens.analysis.estimate import Estimate, Resampling, student_t
from orderlens.analysis.significance import adjust
from orderlens.metrics.segments import FloatArray
from orderlens.rng import keyed_generator

FLIPS = 9999
"""Random sign flips; where there are fewer different ones, all are taken."""
_PIECE = 4_000_000
"""Signs made at once."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One column minus another over the texts that both have.

    Attributes:
        estimate: mean difference with Student's interval.
        wins: texts on which the first is higher.
        losses: texts on which the second is; the rest are ties.
        p: two-sided, from flipping the sign of each text's difference; NaN when undefined.
        p_holm: corrected over all pairs that were compared together.
    """

    estimate: Estimate
    wins: int
    losses: int
    p: float
    p_holm: float


def paired_differences(
    differences: Sequence[FloatArray], resampling: Resampling | None = None
) -> list[PairedDifference]:
    """Return the comparisons that belong to one table.

    Args:
        differences: first minus second of each text, one array per pair; NaN where one is missing.
        resampling: seed of the flips and coverage of the intervals.
    """
    how = resampling or Resampling()
    known = [values[np.isfinite(values)] for values in differences]
    p = [sign_flip_p(values, how.seed) for values in known]
    return [
        PairedDifference(
            _student(values, how.level, len(every) - len(values)),
            int((values > 0).sum()),
            int((values < 0).sum()),
            one,
            float(corrected),
        )
        for values, every, one, corrected in zip(known, differences, p, adjust(p, "holm"), strict=True)
    ]


def _student(values: FloatArray, level: float, missing: int) -> Estimate:
    n = len(values)
    if not n:
        return Estimate.undefined("no text in common", missing)
    middle = float(values.mean())
    if n < 2:
        return Estimate(middle, n=n, n_undefined=missing, why="one text: no interval")
    half = student_t(level, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half, n, missing)


def sign_flip_p(values_N: FloatArray, seed: int = 0) -> float:
    """Return how often flipped signs give a mean at least as far from 0; all flips for up to 13 texts."""
    n = len(values_N)
    if n < 2:
        return math.nan
    bar = abs(values_N.sum()) * (1 - 1e-12) - 1e-300
    if 2**n <= FLIPS + 1:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ values_N) >= bar).mean())
    rng = keyed_generator(seed, "sign flips", n)
    beyond, piece = 0, max(1, _PIECE // n)
    for start in range(0, FLIPS, piece):
        signs = 1.0 - 2.0 * rng.integers(0, 2, (min(piece, FLIPS - start), n))
        beyond += int((np.abs(signs @ values_N) >= bar).sum())
    return (1 + beyond) / (1 + FLIPS)
