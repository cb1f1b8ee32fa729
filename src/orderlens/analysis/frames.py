"""Frames of graded samples (pandas, Arrow or Polars), and columns that a study adds to its traces.

The added columns are labels, Var about a held-out mean, verdicts and reasons for undefined values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orderlens.analysis.traces import TRACE
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.trace_table import GROUPS
from orderlens.registry import suggest
from orderlens.rules.cards import in_paper_order, label

RIVALS = ("mean_entropy", "lowest_group", "lowest_decile", "denoising_entropy")
"""Confidence measures of other work, compared where every sample of a cell has them."""
STUDY_COLUMNS = ("task", "order", "item_id", "correct", "mean", "var", "n")
"""Columns of a table of graded samples; further names of ``association.DIRECTIONS`` are used when present."""


def as_frame(data: Any, required: Sequence[str] = STUDY_COLUMNS) -> pd.DataFrame:
    """Return a fresh pandas frame of pandas, Arrow, Polars or run data; missing columns are named."""
    frame = data.copy() if isinstance(data, pd.DataFrame) else _converted(data)
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise UserInputError(
            f"the table lacks the column(s) {', '.join(missing)}; needed are {', '.join(required)}"
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


def order_labels(frame: pd.DataFrame) -> list[str]:
    """Return the order of each trace, with its seed where there are several."""
    seeds = frame.groupby(["model", "order"], dropna=False)["seed"].transform("nunique")
    return [
        label(str(order), seed, count > 1)
        for order, seed, count in zip(frame["order"], frame["seed"], seeds, strict=True)
    ]


def var_about(frame: pd.DataFrame, prefix: str) -> pd.Series:
    """Return the mean square of log q about the mean per token of the other prompts of the same cell.

    The reference is held out: a prompt's own traces never enter it.
    """
    mean, var = frame[f"{prefix}mean"], frame[f"{prefix}var"]
    known = np.isfinite(mean)
    count = frame["n_content" if prefix else "n"].where(known, 0.0)
    total = mean.where(known, 0.0) * count
    cell = joined_keys(frame, ("model", "task", "order", "temperature"))
    own = joined_keys(frame, ("model", "task", "order", "temperature", "prompt"))
    sums = [
        column.groupby(cell).transform("sum") - column.groupby(own).transform("sum")
        for column in (total, count)
    ]
    reference = sums[0] / sums[1].where(sums[1] > 0)
    return var + (mean - reference) ** 2


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
    return Estimate(cell.value, cell.low, cell.high, cell.n, cell.n_undefined, ", ".join(reasons))


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
