"""Orders and models compared two by two on the same fixed texts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.orders import kind_of
from orderlens.analysis.pairs import PairedDifference, paired_differences
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table
from orderlens.analysis.tables import has_scored, table
from orderlens.metrics.segments import FloatArray

_COLUMNS = (
    Column("difference", "first − second (nats/token)", 4),
    Column("wins", "wins"),
    Column("losses", "losses"),
    Column("n", "n"),
    Column("p", "p", 4),
    Column("p_holm", "Holm p", 4),
)
_KEYS = ("what", "within", "first", "second", "kind")


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
class _Pair:
    """What is compared: ``keys`` are those of the table, ``values`` first minus second per text."""

    keys: tuple[str, ...]
    values: FloatArray


def _of_orders(frame: pd.DataFrame, study: Study) -> list[_Pair]:
    out = []
    for model, rows in frame.groupby("model", sort=False):
        wide = _wide(rows, "order")
        for a, b in itertools.combinations(study.orders(rows), 2):
            values = (wide[a] - wide[b]).to_numpy(np.float64)
            out.append(_Pair(("orders", str(model), a, b, _kind(a, b)), values))
    return out


def _of_models(frame: pd.DataFrame, study: Study) -> list[_Pair]:
    """Return pairs of models; a text that they cut into different numbers of tokens does not count."""
    out = []
    for order in study.orders(frame):
        rows = frame[frame["order"] == order]
        wide, length = _wide(rows, "model"), _wide(rows, "model", "n")
        for a, b in itertools.combinations(wide.columns, 2):
            same = length[a] == length[b]
            values = (wide[a] - wide[b]).where(same).to_numpy(np.float64)
            out.append(_Pair(("models", order, str(a), str(b), _kind(order, order)), values))
    return out


def _wide(rows: pd.DataFrame, column: str, value: str = "mean") -> pd.DataFrame:
    return rows.pivot_table(index="prompt", columns=column, values=value, aggfunc="mean", sort=False)


def _kind(a: str, b: str) -> str:
    return "deployable" if kind_of(a) == kind_of(b) == "deployable" else "target-aware"


def _row(pair: _Pair, found: PairedDifference) -> dict[str, Cell]:
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
        f"Interval: Student's. p: signs of the texts' differences flipped; Holm over all {len(rows)} rows.",
        "wins, losses: texts on which the first is higher, lower. Seeds of one order are averaged.",
    ]
    if any(row["kind"] == "target-aware" for row in rows):
        notes.append("target-aware: one of the two orders sees the target, so its sum is no likelihood.")
    if any(row["what"] == "models" for row in rows):
        notes.append("Models are compared on texts that they cut into the same number of tokens.")
    return tuple(notes)
