"""Millions of reveals reduced to counts on a few hundred knots, without moving the fit.

A log-likelihood is a sum of a smooth function over the reveals. Interpolating that function cubically between
knots makes the sum linear in knot weights, which are computed once; the error is of fourth order in the
spacing. Knots are even in asinh(logit/2): fine around q = ½, wide in the tails. This module knows no
likelihood.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from orderlens.theory._inputs import Array

_SPACING = 0.025
_WIDEST = 90.0
"""Logits beyond ±90 count as ±90: success there is certain or impossible for every σ of interest."""


class Knots:
    """Interpolation of functions of logit q at given logits [N].

    Attributes:
        logit: places of the knots [G].
        weights: sparse [N, G]; ``weights @ f(logit)`` interpolates f at the data.
    """

    def __init__(self, logit_N: Array) -> None:
        place = np.arcsinh(np.clip(logit_N, -_WIDEST, _WIDEST) / 2.0) / _SPACING
        first = int(np.floor(place.min())) - 1
        count = max(int(np.floor(place.max())) + 3 - first, 4)
        self.logit = 2.0 * np.sinh((first + np.arange(count)) * _SPACING)
        cell = np.floor(place).astype(np.int64)
        x = place - cell
        left = cell - 1 - first
        columns = (left[:, None] + np.arange(4)).ravel()
        rows = np.repeat(np.arange(place.size), 4)
        table = sparse.coo_array((_cubic(x).ravel(), (rows, columns)), shape=(place.size, count))
        self.weights = sparse.csr_array(table)

    def gather(self, amount_N: Array) -> Array:
        """Return the knot weights [G] of reveals that count ``amount_N`` each."""
        return np.asarray(self.weights.T @ amount_N)


def _cubic(x: Array) -> Array:
    """Weights [N, 4] of the points −1, 0, 1, 2 for the value at x in [0, 1) of the cubic through them."""
    return np.stack(
        [
            -x * (x - 1.0) * (x - 2.0) / 6.0,
            (x + 1.0) * (x - 1.0) * (x - 2.0) / 2.0,
            -(x + 1.0) * x * (x - 2.0) / 2.0,
            (x + 1.0) * x * (x - 1.0) / 6.0,
        ],
        axis=1,
    )
