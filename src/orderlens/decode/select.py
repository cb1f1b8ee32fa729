"""Choosing one position per state: the largest score wins, the leftmost among equals, ties counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import ModelOutputError
from orderlens.models.protocol import FloatArray, IntArray


def choose(
    scores_R: FloatArray, row_PW: IntArray, allowed_PW: NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Return, per state, the chosen offset and how many positions share its score (1 = no tie).

    Args:
        scores_R: one score per evaluated row.
        row_PW: row index of each window position (ignored where not allowed).
        allowed_PW: positions that may be revealed; at least one per state.
    """
    if np.isnan(scores_R).any():
        raise ModelOutputError(
            "an order gave a NaN score; orders must return finite numbers for every position"
        )
    scores_PW = np.where(allowed_PW, scores_R[np.where(allowed_PW, row_PW, 0)], -np.inf)
    best_P = scores_PW.max(axis=1, keepdims=True)
    tied_PW = allowed_PW & (scores_PW == best_P)
    return tied_PW.argmax(axis=1), tied_PW.sum(axis=1)
