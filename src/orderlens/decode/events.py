"""What a generation recorded: reveals and revisions, pass by pass, merged into sorted columns at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Equal-length arrays by name, one entry per revealed (or changed) token: what a decoder hands on."""


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

    def reveals(self) -> Columns:
        """Return all reveals sorted by (sample, order, step).

        A position that was taken back and filled again keeps its last reveal only (the earlier one is told by
        the revision that took it back); steps are numbered anew then.
        """
        merged = _merged(self._reveals)
        if any((~part["is_edit"]).any() for part in self._revisions):
            merged = _last_reveals(merged)
        return _sorted(merged, "step")

    def revisions(self) -> Columns:
        """Return all revisions sorted by (sample, order, forward, position); empty where there are none."""
        if not self._revisions:
            return {}
        merged = _merged(self._revisions)
        by = np.lexsort((merged["position"], merged["forward"], merged["order"], merged["sample"]))
        return {name: values[by] for name, values in merged.items()}


def _merged(parts: list[Columns]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _sorted(columns: Columns, last: str) -> Columns:
    by = np.lexsort((columns[last], columns["order"], columns["sample"]))
    return {name: values[by] for name, values in columns.items()}


def _last_reveals(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Keep the last reveal of every position and number the steps of every trace from 0."""
    by = np.lexsort((columns["step"], columns["position"], columns["order"], columns["sample"]))
    key = np.stack([columns[name][by] for name in ("sample", "order", "position")])
    last = np.ones(len(by), bool)
    last[:-1] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    kept = dict(_sorted({name: values[by[last]] for name, values in columns.items()}, "step"))
    trace = np.stack([kept["sample"], kept["order"]])
    first = np.ones(trace.shape[1], bool)
    first[1:] = (trace[:, 1:] != trace[:, :-1]).any(axis=0)
    place = np.arange(len(first))
    kept["step"] = place - np.maximum.accumulate(np.where(first, place, 0))
    return kept
