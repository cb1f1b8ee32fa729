"""σ and k fitted to how often the target was the argmax, and the traces behind the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from orderlens.analysis.picked import pick, picked_traces
from orderlens.metrics.segments import BoolArray, FloatArray

if TYPE_CHECKING:
    from orderlens.analysis.study import Study
    from orderlens.theory import NoiseFit

MAX_SEQUENCES = 200
"""Sequences per fit: the likelihood needs every reveal, so their number is bounded."""


@dataclass(frozen=True, slots=True)
class TraceHits:
    """The usable reveals of one trace.

    Attributes:
        logq: log q of the target, at most 0.
        hit: whether the target was the argmax.
        is_whole: every reveal is usable.
    """

    order: str
    logq: FloatArray
    hit: BoolArray
    is_whole: bool


def read_hits(study: Study, part: pd.DataFrame) -> tuple[list[TraceHits], int]:
    """Return the traces of at most ``MAX_SEQUENCES`` prompts of ``part``, and how many prompts there are."""
    kept = pick(part["prompt"].tolist(), MAX_SEQUENCES, study.options.resampling.seed, "noise fit")
    chosen = part[part["prompt"].isin(kept)]
    orders = dict(zip(chosen.index, chosen["order"].astype(str), strict=True))
    out = []
    for row, traces, at in picked_traces(study.run, study.every, chosen.index, ["logq", "is_argmax"]):
        logq, won = (traces.columns[name][at].astype(np.float64) for name in ("logq", "is_argmax"))
        known = np.isfinite(logq) & np.isfinite(won)
        usable = np.minimum(logq[known], 0.0)
        out.append(TraceHits(orders[row], usable, won[known] > 0, bool(known.all() and len(known))))
    return out, len(kept)


def fit_hits(traces: Sequence[TraceHits]) -> NoiseFit:
    """Fit the noise to the traces' reveals; the same reveals are fitted once (a table and a figure ask).

    Raises:
        TheoryError: there is nothing to fit, e.g. no miss.
    """
    logq = np.concatenate([np.zeros(0), *(item.logq for item in traces)])
    hit = np.concatenate([np.zeros(0, np.bool_), *(item.hit for item in traces)])
    return _fitted(logq.tobytes(), hit.tobytes())


@lru_cache(maxsize=8)
def _fitted(logq: bytes, hit: bytes) -> NoiseFit:
    from orderlens.theory import fit_noise

    return fit_noise(np.frombuffer(logq), np.frombuffer(hit, np.bool_))
