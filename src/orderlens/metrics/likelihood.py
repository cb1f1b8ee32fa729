"""Bits per byte of the sampler that a policy defines: exact, estimated over seeds, or undefined.

A randomised policy draws its path, so its likelihood of a text is the mean of P over paths. K seeds give
log mean P. By Jensen's inequality this is too low on average; the bias shrinks with K, and the value is never
below the mean of log P. The interval over texts includes the variation of the draws, because every text has
separate draws. The interval over seeds keeps the texts fixed (jackknife over seeds, Student's t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from orderlens.metrics.estimate import Clusters, Estimate, Resampling, function_of_sums, student_t
from orderlens.metrics.segments import FloatArray, divide

NO_BYTES = "the runs do not store the scored texts"
NO_LIKELIHOOD = "not a likelihood: the order sees the target, or tokens were chosen among draws"


@dataclass(frozen=True, slots=True)
class TextBits:
    """One policy on its texts.

    Attributes:
        kind: ``exact``, ``estimate`` or ``none``.
        log_prob_TK: log P of each text along each seed's path (nats); NaN if missing.
        n_bytes_T: UTF-8 bytes of the texts.
        prompts: the prompt of each text, which identifies it.
    """

    kind: str
    log_prob_TK: FloatArray
    n_bytes_T: FloatArray
    prompts: list[object]

    @classmethod
    def of(cls, part: pd.DataFrame) -> TextBits:
        """Read the scored traces of one policy: ``prompt, seed, log_prob, n_bytes, likelihood``."""
        kinds = set(part["likelihood"].dropna())
        kind = next((name for name in ("none", "estimate", "exact") if name in kinds), "none")
        seeds = part["seed"].fillna(-1)
        wide = part.assign(seed=seeds).pivot_table(
            index="prompt", columns="seed", values="log_prob", aggfunc="first", sort=False
        )
        n_bytes = part.groupby("prompt", sort=False)["n_bytes"].first().reindex(wide.index)
        return cls(kind, wide.to_numpy(np.float64), n_bytes.to_numpy(np.float64), list(wide.index))

    @property
    def n_seeds(self) -> int:
        """Paths per text."""
        return int(self.log_prob_TK.shape[1])

    @property
    def usable(self) -> FloatArray:
        """Texts with a length and a value for every seed [T], as 0 and 1."""
        known = np.isfinite(self.log_prob_TK).all(axis=1) & (self.n_bytes_T > 0)
        return known.astype(np.float64)

    def bits(self, without: int | None = None) -> FloatArray:
        """Return −log2 of the mean of P over seeds [T], optionally without one seed."""
        used = self.log_prob_TK if without is None else np.delete(self.log_prob_TK, without, axis=1)
        log_mean = special.logsumexp(used, axis=1) - math.log(used.shape[1])
        return np.asarray(-log_mean / math.log(2), np.float64)

    def per_byte(self, resampling: Resampling) -> Estimate:
        """Return bits per byte (all bits over all bytes) with an interval over texts."""
        if self.kind == "none":
            return Estimate.undefined(NO_LIKELIHOOD)
        usable = self.usable
        if not usable.any():
            return Estimate.undefined(NO_BYTES, len(usable))
        sums = np.where(usable[:, None] > 0, np.column_stack([self.bits(), self.n_bytes_T]), 0.0)
        clusters = Clusters(self.prompts, resampling)
        (found,) = function_of_sums(clusters, clusters.sums(sums), _quotient, int(usable.sum()))
        missing = len(usable) - found.n
        return Estimate(found.value, found.low, found.high, found.n, missing)

    def over_seeds(self, level: float) -> Estimate:
        """Return the same number with an interval over seeds, for fixed texts."""
        if self.kind != "estimate":
            return Estimate.undefined("nothing is drawn" if self.kind == "exact" else NO_LIKELIHOOD)
        if self.n_seeds < 2:
            return Estimate.undefined("one seed: no interval; score random:0, random:1, … together")
        known, n = self.usable > 0, self.n_seeds
        total = self.n_bytes_T[known].sum()
        if not total:
            return Estimate.undefined(NO_BYTES)
        value = float(self.bits()[known].sum() / total)
        left_out = np.array([self.bits(without=k)[known].sum() / total for k in range(n)])
        error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
        half = student_t(level, n - 1) * error
        return Estimate(value, value - half, value + half, int(known.sum()))


def _quotient(total: FloatArray) -> FloatArray:
    return divide(total[:, 0], total[:, 1])[:, None]
