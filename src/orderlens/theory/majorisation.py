"""Which of two profiles is more uneven, when that question has an answer.

a majorises b when both have the same total and, for every m, the m lowest steps of a sum to no more than
those of b. Then Σ g(a) ≤ Σ g(b) for every concave g, so b is the safer profile for all σ ≤ σ₀ at once. Most
pairs are not comparable this way, and then no single number, Var included, orders their recoverability for
every g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from orderlens.theory import _inputs
from orderlens.theory.errors import ProfileError

Relation = Literal["equal", "first", "second", "neither"]


@dataclass(frozen=True, slots=True)
class SpreadComparison:
    """Result of :func:`compare_spread`.

    Attributes:
        more_uneven: ``"first"`` or ``"second"`` when that profile majorises the other, ``"equal"`` when they
            are the same up to order, ``"neither"`` when they are not comparable.
        first_below: largest amount by which partial sums of the first lie below the second's, in nats.
        second_below: the same with the roles exchanged.
    """

    more_uneven: Relation
    first_below: float
    second_below: float


def compare_spread(first: ArrayLike, second: ArrayLike, tolerance: float = 1e-9) -> SpreadComparison:
    """Compare two profiles of the same length and total by majorisation.

    Args:
        first: log q of every step [n].
        second: log q of every step [n].
        tolerance: nats by which totals and partial sums may differ and still count as equal.
    """
    a, b = _inputs.profile(first), _inputs.profile(second)
    if a.ndim != 1 or a.shape != b.shape:
        raise ProfileError(
            f"profiles must have the same length to compare; got shapes {a.shape} and {b.shape}"
        )
    if abs(a.sum() - b.sum()) > tolerance * max(1.0, abs(a.sum())):
        raise ProfileError(
            f"profiles must have the same total log-probability to compare; got {a.sum()!s} and {b.sum()!s}"
        )
    gap = np.cumsum(np.sort(a)) - np.cumsum(np.sort(b))
    below, above = float(max(-gap.min(), 0.0)), float(max(gap.max(), 0.0))
    return SpreadComparison(_relation(below > tolerance, above > tolerance), below, above)


def majorises(first: ArrayLike, second: ArrayLike, tolerance: float = 1e-9) -> bool:
    """Whether ``first`` is at least as uneven as ``second`` in the sense of majorisation."""
    return compare_spread(first, second, tolerance).more_uneven in ("first", "equal")


def _relation(first_lower: bool, second_lower: bool) -> Relation:
    if first_lower and second_lower:
        return "neither"
    if first_lower:
        return "first"
    return "second" if second_lower else "equal"
