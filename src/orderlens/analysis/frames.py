"""Tables of graded samples, whatever library they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orderlens.errors import UserInputError

STUDY_COLUMNS = ("task", "order", "item_id", "correct", "mean", "var", "n")
"""Columns of a table of graded samples; ``min``, ``bottleneck_rate`` and ``jensen`` are used when present."""


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
    """Return one text per row that tells rows apart by ``columns``; null is a value like any other."""
    return ["/".join(map(repr, row)) for row in frame[list(columns)].itertuples(index=False)]


def cells(frame: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the groups of ``frame`` in order of first appearance, null keys included."""
    for key, rows in frame.groupby(list(keys), sort=False, dropna=False):
        yield (key if isinstance(key, tuple) else (key,)), rows
