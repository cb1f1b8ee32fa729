"""Pairwise comparison of orders and models on the same fixed texts: difference, wins, sign-flip test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderlens.analysis.frames import side_by_side
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, has_scored, table
from orderlens.common.rng import keyed_generator
from orderlens.metrics.coherence import ROUNDING
from orderlens.metrics.estimate import Estimate, Resampling, student_t
from orderlens.metrics.segments import FloatArray
from orderlens.metrics.significance import adjust
from orderlens.rules.cards import kind_of

FLIPS = 9999
"""Number of random sign flips; if fewer are possible, all are used."""
_PIECE = 4_000_000
"""Maximum number of signs in memory."""


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
        differences: first minus second of each text, one array per pair; NaN where one is missing. Up to
            ``metrics.coherence.ROUNDING`` they count as ties.
        resampling: seed of the flips and coverage of the intervals.
    """
    how = resampling or Resampling()
    known = [_without_rounding(values[np.isfinite(values)]) for values in differences]
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


def _without_rounding(values: FloatArray) -> FloatArray:
    """Set differences within rounding error to exactly 0, so that they count as ties."""
    return np.where(np.abs(values) > ROUNDING, values, 0.0)


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


_COLUMNS = (
    Column("difference", "first − second (nats/token)", 4),
    Column("wins", "wins"),
    Column("losses", "losses"),
    Column("n", "n"),
    Column("p", "p", 4),
    Column("p_holm", "Holm p", 4),
)
_KEYS = ("compared", "within", "first", "second", "kind")


@table("orders (and models) two by two: difference of log P per token", suits=has_scored, across_models=True)
def order_pairs(study: Study) -> list[Table]:
    """Return every pair of orders of each model, and every pair of models under each order.

    Seeds of one order are averaged per text first.
    """
    frame = study.scored
    pairs = [*_of_orders(frame, study), *_of_models(frame, study)] if len(frame) else []
    found = paired_differences([pair.values for pair in pairs], study.options.resampling)
    rows = [_row(pair, result) for pair, result in zip(pairs, found, strict=True)]
    title = "Fixed sequences: log P per token, two by two on the same texts"
    return [
        Table("order-pairs", title, _KEYS, _COLUMNS, tuple(rows) or (_nothing(len(frame)),), _notes(rows))
    ]


@dataclass(frozen=True, slots=True)
class _TestedPair:
    """Two orders or models: ``keys`` of their row in the table, ``values`` first minus second per text."""

    keys: tuple[str, ...]
    values: FloatArray


def _of_orders(frame: pd.DataFrame, study: Study) -> list[_TestedPair]:
    out = []
    for model, rows in frame.groupby("model", sort=False):
        wide = side_by_side(rows, "mean")
        for a, b in itertools.combinations(study.orders(rows), 2):
            values = (wide[a] - wide[b]).to_numpy(np.float64)
            out.append(_TestedPair(("orders", str(model), a, b, _kind(a, b)), values))
    return out


def _of_models(frame: pd.DataFrame, study: Study) -> list[_TestedPair]:
    """Return pairs of models; texts that they split into different numbers of tokens are excluded."""
    out = []
    for order in study.orders(frame):
        rows = frame[frame["order"] == order]
        wide, length = side_by_side(rows, "mean", by="model"), side_by_side(rows, "n", by="model")
        for a, b in itertools.combinations(wide.columns, 2):
            same = length[a] == length[b]
            values = (wide[a] - wide[b]).where(same).to_numpy(np.float64)
            out.append(_TestedPair(("models", order, str(a), str(b), _kind(order, order)), values))
    return out


def _kind(a: str, b: str) -> str:
    return "deployable" if kind_of(a) == kind_of(b) == "deployable" else "target-aware"


def _row(pair: _TestedPair, found: PairedDifference) -> dict[str, Cell]:
    keys: dict[str, Cell] = dict(zip(_KEYS, pair.keys, strict=True))
    why = None if found.p == found.p else "fewer than two texts in common"
    counts: dict[str, Cell] = {"wins": found.wins, "losses": found.losses, "n": found.estimate.n}
    return (
        keys
        | counts
        | {
            "difference": found.estimate,
            "p": Estimate(found.p, why=why),
            "p_holm": Estimate(found.p_holm, why=why),
        }
    )


def _nothing(n_traces: int) -> dict[str, Cell]:
    empty = Estimate.undefined("one order of one model: nothing to compare" if n_traces else NO_TARGET)
    counts: dict[str, Cell] = {"wins": 0, "losses": 0, "n": 0}
    return dict.fromkeys(_KEYS, "") | counts | dict.fromkeys(("difference", "p", "p_holm"), empty)


def _notes(rows: list[dict[str, Cell]]) -> tuple[str, ...]:
    notes = [
        f"Interval: Student's t. p: sign-flip test over texts; Holm over all {len(rows)} rows.",
        f"wins, losses: texts on which the first is higher, lower, by more than {ROUNDING:g} nats per token.",
        "Seeds of one order are averaged.",
    ]
    if any(row["kind"] == "target-aware" for row in rows):
        notes.append(
            "target-aware: one of the two orders sees the target, so its sum of log q is not a likelihood."
        )
    if any(row["compared"] == "models" for row in rows):
        notes.append("Models are compared only on texts that they split into the same number of tokens.")
    return tuple(notes)
