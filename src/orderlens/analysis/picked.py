"""The reveals of a few picked traces of a run: for statistics that need whole traces, not one number each."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from orderlens.analysis.traces import Traces, known_traces
from orderlens.common.rng import keyed_generator
from orderlens.store.reader import Run

T = TypeVar("T", bound=Hashable)


def pick(values: Sequence[T], limit: int, seed: int, what: str) -> set[T]:
    """Return at most ``limit`` of the distinct values, chosen by a seed."""
    unique = list(dict.fromkeys(values))
    if len(unique) > limit:
        rng = keyed_generator(seed, what)
        unique = [unique[place] for place in rng.choice(len(unique), limit, replace=False)]
    return set(unique)


def picked_traces(
    run: Run, samples: pd.DataFrame, rows: Collection[int] | pd.Index, columns: Sequence[str]
) -> Iterator[tuple[int, Traces, slice]]:
    """Yield (row, chunk, rows of the chunk) for the traces that are ``rows`` of the sample table.

    Overflow reveals are left out. ``columns`` are those needed besides the flags.
    """
    wanted = np.asarray(sorted(rows), np.int64)
    done = 0
    for traces in known_traces(run, samples, columns):
        count = traces.segments.count
        for row in wanted[np.searchsorted(wanted, done) : np.searchsorted(wanted, done + count)]:
            place = int(row) - done
            yield int(row), traces, slice(*traces.segments.bounds[place : place + 2])
        done += count
