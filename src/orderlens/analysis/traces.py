"""Traces of a run for studies: the table of their statistics, and their reveals as flat arrays.

Both are read in bounded memory. Reveals past the requested length are left out of the arrays. Does not depend
on files, models or graders.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

from orderlens.common.rng import keyed_generator
from orderlens.metrics.segments import FloatArray, Segments
from orderlens.metrics.text import segment_distinct_n
from orderlens.metrics.trace_table import FLAGS, GROUPS, ContentDrops, TraceArrays
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, merged_chunks, samples_schema, trace_arrays

TRACE = ["run", *KEYS]
"""Columns that name a trace over several runs."""

T = TypeVar("T", bound=Hashable)


def sample_table(
    run: Run, groups: Collection[str] = tuple(GROUPS), drops: ContentDrops = "special"
) -> pd.DataFrame:
    """Return one row per trace of ``run`` with its run, in the order of the store.

    Args:
        run: an opened run.
        groups: which statistics to compute besides ``path``.
        drops: the tokens that content statistics leave out.
    """
    wanted = ("path", *(name for name in groups if name != "path"))
    empty = samples_schema(*wanted, run=True).empty_table()
    frame: pd.DataFrame = pa.concat_tables([empty, *run.iter_samples(wanted, drops)]).to_pandas()
    return frame


def known_traces(
    run: Run, samples: pd.DataFrame, columns: Sequence[str], drops: ContentDrops = "special"
) -> Iterator[TraceArrays]:
    """Yield the run's traces in the order of its sample table, without reading their keys.

    The table holds the length of each trace, so only ``columns`` and the flags are read.
    """
    lengths = (samples["n"] + samples["n_overflow"]).to_numpy(np.int64)
    bounds, done = np.concatenate([[0], np.cumsum(lengths)]), 0
    for chunk in merged_chunks(run.iter_traces([*columns, *FLAGS])):
        first, last = np.searchsorted(bounds, [done, done + chunk.num_rows])
        yield trace_arrays(chunk, Segments(bounds[first : last + 1] - done), drops=drops)
        done += chunk.num_rows


def matched_distinct(run: Run, samples: pd.DataFrame, limits: ArrayLike, n: int = 3) -> FloatArray:
    """Return distinct-n of each trace's first ``limits[i]`` tokens (EOS removed), like the sample table."""
    limit = np.asarray(limits, np.int64)
    out, done = [np.zeros(0)], 0
    for traces in known_traces(run, samples, ["position", "token_id"]):
        tokens, kept = traces.text_tokens()
        short = kept.ranks() < kept.repeat(limit[done : done + kept.count])
        out.append(segment_distinct_n(tokens[short], kept.filter(short), n))
        done += kept.count
    return np.concatenate(out)


def pick(values: Sequence[T], limit: int, seed: int, what: str) -> set[T]:
    """Return at most ``limit`` of the distinct values, chosen by a seed."""
    unique = list(dict.fromkeys(values))
    if len(unique) > limit:
        rng = keyed_generator(seed, what)
        unique = [unique[place] for place in rng.choice(len(unique), limit, replace=False)]
    return set(unique)


def picked_traces(
    run: Run,
    samples: pd.DataFrame,
    rows: Collection[int] | pd.Index,
    columns: Sequence[str],
    drops: ContentDrops = "special",
) -> Iterator[tuple[int, TraceArrays, slice]]:
    """Yield (row, chunk, rows of the chunk) for the traces that are ``rows`` of the sample table.

    ``columns`` are those needed besides the flags.
    """
    wanted = np.asarray(sorted(rows), np.int64)
    done = 0
    for traces in known_traces(run, samples, columns, drops):
        count = traces.segments.count
        for row in wanted[np.searchsorted(wanted, done) : np.searchsorted(wanted, done + count)]:
            place = int(row) - done
            yield int(row), traces, slice(*traces.segments.bounds[place : place + 2])
        done += count


def trace_rows(run: Run, name: str, *columns: str) -> pd.DataFrame:
    """Return columns of a table with the trace key and ``run`` (a single run does not store it).

    Only these columns are read (all if none is named), because the tokens of a large run would fill memory.
    """
    table = run.table(name)
    wanted = [item for item in (*TRACE, *columns) if item in table.columns]
    frame = table.to_pandas(wanted if columns else None)
    return frame if "run" in frame.columns else frame.assign(run=run.names[0])


def in_sets(frame: pd.DataFrame) -> pd.Series:
    """Return which traces revealed several tokens in some pass, judging by their number of passes.

    Tokens past the requested length count, because the passes that revealed them do.

    Args:
        frame: one row per trace with ``n_passes``, ``n`` and ``n_overflow``.
    """
    return frame["n_passes"] < frame["n"] + frame["n_overflow"]


def all_passes(frame: pd.DataFrame) -> pd.Series:
    """Return all passes of each trace, including look-ahead: the compute at which policies are compared."""
    return frame["n_passes"] + frame["n_passes_lookahead"]
