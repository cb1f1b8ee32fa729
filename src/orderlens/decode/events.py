"""What a generation recorded: reveals and revisions, pass by pass, merged into sorted columns at the end.

Every token that ever stood on the canvas has one event that put it there: a reveal or an edit. ``reveals``
holds one reveal per position, the last one. Where a position was taken back and filled again, its earlier
reveals stand among the revisions, as events of their own, so that both tables together are the whole history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Equal-length arrays by name, one entry per revealed (or changed) token: what a decoder hands on."""
NO_TOKEN = -1
"""``old_token`` of a reveal, which replaces nothing."""


class Recorder:
    """Collects the columns of every pass."""

    def __init__(self) -> None:
        self._reveals: list[Columns] = []
        self._revisions: list[Columns] = []

    def add_reveals(self, columns: Columns) -> None:
        """Add the tokens that one pass committed."""
        if len(columns["position"]):
            self._reveals.append(columns)

    def add_revisions(self, columns: Columns) -> None:
        """Add the tokens that one pass changed or took back."""
        self._revisions.append(columns)

    def columns(self) -> tuple[Columns, Columns]:
        """Return the last reveal of every position, and everything else that happened.

        Reveals come sorted by (sample, order, step), with steps numbered 0…n−1; revisions by (sample, order,
        forward, position), without columns where there are none.
        """
        reveals, revisions = _merged(self._reveals), list(self._revisions)
        if any((part["event"] == "remask").any() for part in revisions):
            last = _is_last(reveals)
            reveals = _told_by_the_first(reveals, last)
            revisions.append(_as_events({name: values[~last] for name, values in reveals.items()}))
            reveals = _renumbered({name: values[last] for name, values in reveals.items()})
        if not revisions:
            return _sorted(reveals, "step"), {}
        return _sorted(reveals, "step"), _sorted(_merged(revisions), "forward", "position")


def _merged(parts: list[Columns]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _sorted(columns: Columns, *keys: str) -> dict[str, NDArray[Any]]:
    by = np.lexsort([columns[name] for name in (*keys[::-1], "order", "sample")])
    return {name: values[by] for name, values in columns.items()}


def _is_last(reveals: Columns) -> NDArray[np.bool_]:
    """Return which reveals are the last of their position."""
    by = np.lexsort((reveals["step"], reveals["position"], reveals["order"], reveals["sample"]))
    key = np.stack([reveals[name][by] for name in ("sample", "order", "position")])
    last = np.ones(len(by), bool)
    last[by[:-1]] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    return last


def _told_by_the_first(reveals: dict[str, NDArray[Any]], last: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Let each trace's first lasting reveal tell the states that were tried when others were revealed."""
    if "n_lookahead" not in reveals:
        return reveals
    tried, key = reveals["n_lookahead"].copy(), np.stack([reveals["sample"], reveals["order"]])
    trace = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    lost_T = np.bincount(trace, np.where(last, 0, tried)).astype(tried.dtype)
    kept = np.lexsort((reveals["step"], trace, ~last))[: int(last.sum())]
    first_T = kept[np.unique(trace[kept], return_index=True)[1]]
    tried[first_T] += lost_T
    return {**reveals, "n_lookahead": tried}


def _renumbered(reveals: Columns) -> dict[str, NDArray[Any]]:
    """Number the steps of every trace from 0."""
    kept = _sorted(reveals, "step")
    trace = np.stack([kept["sample"], kept["order"]])
    first = np.ones(trace.shape[1], bool)
    first[1:] = (trace[:, 1:] != trace[:, :-1]).any(axis=0)
    place = np.arange(len(first))
    kept["step"] = place - np.maximum.accumulate(np.where(first, place, 0))
    return kept


def _as_events(reveals: Columns) -> Columns:
    """Return reveals that did not last as rows of the revisions."""
    count = len(reveals["position"])
    return {name: reveals[name] for name in ("sample", "order", "forward", "position")} | {
        "event": np.full(count, "reveal"),
        "old_token": np.full(count, NO_TOKEN),
        "old_logq": np.full(count, np.nan),
        "new_token": reveals["token_id"],
        "logq": reveals["logq"],
    }
