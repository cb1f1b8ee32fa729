"""Frames of graded samples (pandas, Arrow or Polars), and paired comparisons between orders.

Frames show orders or temperatures side by side, one row per prompt; ``Paired`` resamples the prompts. Numbers
in, estimates out.

Shape letters: C prompts, K columns (an order, or an order at a temperature), B resamples, S statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orderlens.analysis.traces import TRACE
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import (
    Clusters,
    Estimate,
    Resampling,
    difference_of_means,
    mean,
    weighted_medians,
)
from orderlens.metrics.segments import FloatArray, divide
from orderlens.metrics.trace_table import GROUPS
from orderlens.registry import suggest
from orderlens.rules.cards import in_paper_order

RIVALS = ("mean_entropy", "self_certainty", "lowest_group", "lowest_decile", "denoising_entropy")
"""Confidence measures of other work, compared where every sample of a cell has them."""
STUDY_COLUMNS = ("task", "order", "item_id", "correct", "mean", "var", "n")
"""Columns of a table of graded samples; further names of ``association.DIRECTIONS`` are used when present."""


def as_frame(data: Any, required: Sequence[str] = STUDY_COLUMNS) -> pd.DataFrame:
    """Return a fresh pandas frame of pandas, Arrow, Polars or run data; missing columns are named."""
    frame = data.copy() if isinstance(data, pd.DataFrame) else _converted(data)
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise UserInputError(
            f"the table lacks the columns {', '.join(missing)}; needed are {', '.join(required)}"
        )
    return frame.reset_index(drop=True)


def _converted(data: Any) -> pd.DataFrame:
    if hasattr(data, "to_pandas"):
        return pd.DataFrame(data.to_pandas())
    try:
        return pd.DataFrame(data)
    except (TypeError, ValueError) as error:
        raise UserInputError(f"expected a pandas or Arrow table, got {type(data).__name__}") from error


def same_kind(data: Any) -> Callable[[pd.DataFrame], Any]:
    """Return the function that turns a pandas result into the library of ``data`` (Arrow in, Arrow out)."""
    import pyarrow as pa

    if isinstance(data, pa.Table | pa.RecordBatch):
        return lambda frame: pa.Table.from_pandas(frame, preserve_index=False)
    return lambda frame: frame


def graded_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows with a verdict, ``correct`` as 0/1 floats, and how many had none."""
    correct = pd.to_numeric(frame["correct"].astype(object).where(frame["correct"].notna()), errors="coerce")
    correct = correct.astype(float)
    known = correct.notna()
    out = frame[known].copy()
    out["correct"] = correct[known]
    return out, int((~known).sum())


def finite_flags(frame: pd.DataFrame, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have a finite number in all of ``columns``."""
    values = frame[list(columns)].to_numpy(np.float64, na_value=np.nan)
    return np.asarray(np.isfinite(values).all(axis=1), np.bool_)


def finite_rows(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows that have a finite number in all of ``columns``."""
    return frame.loc[finite_flags(frame, columns)]


def joined_keys(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return one key per row, built from ``columns``; null is a value like any other."""
    return ["/".join(map(repr, row)) for row in frame[list(columns)].itertuples(index=False)]


def cells(frame: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the groups of ``frame`` in order of first appearance, null keys included."""
    for key, rows in frame.groupby(list(keys), sort=False, dropna=False):
        yield (key if isinstance(key, tuple) else (key,)), rows


def side_by_side(frame: pd.DataFrame, value: str, by: str = "order", of: str = "prompt") -> pd.DataFrame:
    """Return ``value`` with one row per prompt and one column per order; several traces (seeds) are averaged.

    Args:
        frame: traces, or graded samples.
        value: the column to show.
        by: column whose values are compared.
        of: column of the units they are compared on: ``prompt`` or ``item_id``.
    """
    return frame.pivot_table(index=of, columns=by, values=value, aggfunc="mean", sort=False)


def refuse_missing(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse a statistic that ``frame`` does not hold; the message says how a table declares more of them."""
    for name in columns:
        if name not in frame:
            groups = ", ".join(f"'{part}'" for part in GROUPS if part != "path")
            raise UserInputError(
                f"there is no column '{name}'{suggest(name, frame.columns)}; a table declares further "
                f"statistics with @table(…, needs=(…,)), allowed: {groups}"
            )


def with_reason(cell: Estimate, frame: pd.DataFrame, column: str) -> Estimate:
    """Return the cell with the reason why rows of ``column`` are undefined, if any are."""
    if not cell.n_undefined:
        return cell
    missing = frame[~np.isfinite(frame[column].astype(float))]
    reasons = []
    broken = int((missing["n_nonfinite"] > 0).sum())
    if broken:
        reasons.append(f"{broken} with NaN or −inf in the trace")
    rest = missing[missing["n_nonfinite"] == 0]
    empty = int((rest["n_content"] == 0).sum())
    if empty:
        reasons.append(f"{empty} without content tokens")
    short = int(((rest["n_content"] > 0) & (rest["n_content"] < 3)).sum())
    if short:
        reasons.append(f"{short} too short")
    if other := len(rest) - empty - short:
        reasons.append(f"{other} not recorded")
    return replace(cell, why=", ".join(reasons))


def graded_samples(decoded: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the generated traces that have a verdict, with content statistics as mean, var, min, n.

    ``n_followed`` of ``n_instructions`` were followed (strict), in runs of tasks with instructions.
    """
    rivals = [name for name in RIVALS if f"content_{name}" in decoded.columns]
    own = ("mean", "var", "min", "bottleneck_rate", *rivals)
    parts = ["per_instruction"] if "per_instruction" in verdicts else []
    judged = verdicts[[*TRACE, "correct", *parts]]
    joined = decoded.drop(columns=[*own, "n"], errors="ignore").merge(judged, on=TRACE, how="inner")
    names = {name: f"content_{name}" for name in own}
    names |= {"n": "n_content"}
    out = pd.DataFrame({"task": joined["task"].astype(object).where(joined["task"].notna(), "(none)")})
    out["order"] = joined["label"]
    out["base_order"] = joined["order"]
    out["item_id"] = joined["prompt_key"]
    out["correct"] = joined["correct"]
    for name, source in names.items():
        out[name] = joined[source]
    if parts and joined["per_instruction"].notna().any():
        strict = [
            json.loads(text)["strict"] if isinstance(text, str) else [] for text in joined["per_instruction"]
        ]
        out["n_followed"], out["n_instructions"] = (
            [sum(hits) for hits in strict],
            [len(hits) for hits in strict],
        )
    if "content_jensen_0.5" in joined.columns:
        out["jensen"] = joined["content_jensen_0.5"]
    return _sorted_by_order(out)


def _sorted_by_order(frame: pd.DataFrame) -> pd.DataFrame:
    rank = {name: place for place, name in enumerate(in_paper_order(frame["order"].unique()))}
    return (
        frame.assign(_rank=frame["order"].map(rank))
        .sort_values(["task", "_rank"], kind="stable")
        .drop(columns="_rank")
    )


Function = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Paired:
    """A table with one row per prompt and one column per order or condition; rows are resampled."""

    columns: tuple[str, ...]
    values_CK: FloatArray
    clusters: Clusters

    @classmethod
    def of(cls, wide: pd.DataFrame, resampling: Resampling) -> Paired:
        """Build from a frame whose index names the prompts."""
        names = tuple(str(name) for name in wide.columns)
        return cls(names, wide.to_numpy(np.float64), Clusters(list(wide.index), resampling))

    def pick(self, *names: str) -> Paired:
        """Return the table with these columns only, in this sequence."""
        places = [self.columns.index(name) for name in names]
        return replace(self, columns=names, values_CK=self.values_CK[:, places])

    def has(self, *names: str) -> bool:
        """Whether the table has all these columns."""
        return set(names) <= set(self.columns)

    def mean(self, name: str) -> Estimate:
        """Return the mean of one column."""
        if not self.has(name):
            return Estimate.undefined(f"{name} was not run, or is undefined for every text")
        return self.pick(name).of_means(lambda m: m)[0]

    def difference(self, a: str, b: str) -> Estimate:
        """Return the mean of ``a`` minus that of ``b``."""
        if not self.has(a, b):
            return Estimate.undefined(f"{a} and {b} were not both run")
        return self.pick(a, b).of_means(lambda m: stack(m[:, 0] - m[:, 1]))[0]

    def of_means(self, function: Function, why: str = "no value") -> list[Estimate]:
        """Return statistics of the columns' means; ``function`` takes means [B, K] and returns [B, S]."""
        known = np.isfinite(self.values_CK)
        filled = np.where(known, self.values_CK, 0.0)

        def statistic(counts_BC: FloatArray) -> FloatArray:
            return function(divide(counts_BC @ filled, counts_BC @ known.astype(np.float64)))

        return self._estimates(statistic, why)

    def of_medians(self, function: Function, why: str = "no value") -> list[Estimate]:
        """Return statistics of the columns' medians; ``function`` takes medians [B, K] and returns [B, S]."""
        return self._estimates(lambda counts: function(weighted_medians(self.values_CK, counts)), why)

    def _estimates(self, statistic: Function, why: str) -> list[Estimate]:
        n = len(self.values_CK)
        if not n:
            return [Estimate.undefined(why)]
        values = statistic(np.ones((1, n)))[0]
        return self.clusters.estimates(np.where(np.isfinite(values), values, np.nan), statistic, n, why=why)


def mean_difference(differences: pd.Series, resampling: Resampling, why: str) -> Estimate:
    """Return the mean of differences, one per prompt or item (the index), with its interval."""
    known = differences.dropna()
    if not len(known):
        return Estimate.undefined(why)
    return mean(known.to_numpy(), Clusters(list(known.index), resampling))


def paired_difference(first: pd.Series, second: pd.Series, resampling: Resampling, why: str) -> Estimate:
    """Return the mean of ``first`` minus that of ``second`` over the items (the index) that both have.

    For skewed values such as Var; see ``difference_of_means``. ``n`` counts items.
    """
    both = pd.DataFrame({"first": first, "second": second}).dropna()
    if not len(both):
        return Estimate.undefined(why)
    items, is_first = [*both.index, *both.index], np.repeat([True, False], len(both))
    found = difference_of_means(both.to_numpy().T.reshape(-1), is_first, Clusters(items, resampling))
    return replace(found, n=len(both))


def stack(*parts: FloatArray) -> FloatArray:
    """Return statistics [B] side by side [B, S]."""
    return np.stack(parts, axis=1)


def rank_rows(x_BK: FloatArray, y_BK: FloatArray) -> FloatArray:
    """Return the Spearman correlation of each row of ``x`` with the same row of ``y`` [B]."""
    u, v = (pd.DataFrame(values).rank(axis=1).to_numpy() for values in (x_BK, y_BK))
    u, v = u - u.mean(axis=1, keepdims=True), v - v.mean(axis=1, keepdims=True)
    scale = np.sqrt((u * u).sum(axis=1) * (v * v).sum(axis=1))
    rho = divide((u * v).sum(axis=1), scale)
    bad = ~(np.isfinite(x_BK).all(axis=1) & np.isfinite(y_BK).all(axis=1))
    return np.where(bad, np.nan, rho)


def wide_of(frame: pd.DataFrame, column: str, keys: Sequence[str] = ("order",)) -> pd.DataFrame:
    """Return ``column`` of a study's traces by ``prompt``; ``keys`` joined with ``@`` name the columns."""
    named = frame.assign(
        what=["@".join(_name(value) for value in row) for row in frame[list(keys)].itertuples(index=False)],
    )
    return side_by_side(named, column, by="what")


def _name(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
