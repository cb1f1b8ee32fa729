"""Traces of a run for studies: the table of their statistics, their reveals as flat arrays, kept states.

Reveals are read in bounded memory; those past the requested length are left out of the arrays. States of the
masked positions (``--states``) are read trace by trace; ``metrics.locality`` defines their statistics. Does
not depend on files, models, tables or graders.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

from orderlens.common.rng import keyed_generator
from orderlens.metrics.locality import States, group_means, lead_of_neighbours
from orderlens.metrics.segments import FloatArray, Segments
from orderlens.metrics.text import segment_distinct_n
from orderlens.metrics.trace_table import FLAGS, GROUPS, ContentDrops, TraceArrays
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, merged_chunks, samples_schema, trace_arrays
from orderlens.store.schema import ENTROPY_UNITS, TOP_UNITS

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


RIVALS = {"2": (2, 3), "3": (3, 1 << 30)}
"""Distances that distance 1 is compared with: exactly 2, and all from 3 on."""


def iter_states(run: Run) -> Iterator[tuple[tuple[object, ...], States]]:
    """Yield each trace with kept states: its values of ``TRACE``, and the states."""
    columns = ("forward", "start", "visible", "top", "entropy")
    frame = trace_rows(run, "states", *columns).sort_values("forward", kind="stable")
    key = pd.Series(_keys(frame), index=frame.index)
    for trace, rows in frame.groupby(key, sort=False):
        text = "".join(rows["visible"]).encode()
        visible_PB = np.frombuffer(text, np.uint8).reshape(len(rows), -1) == ord("1")
        count_P = rows["top"].str.len().to_numpy()
        masked_PB = ~visible_PB & (np.cumsum(~visible_PB, axis=1) <= count_P[:, None])
        numbers = []
        for name, units in (("top", TOP_UNITS), ("entropy", ENTROPY_UNITS)):
            values_PB = np.full(visible_PB.shape, np.nan)
            values_PB[masked_PB] = np.concatenate(rows[name].to_list()) / units
            numbers.append(values_PB)
        forward_P, start_P = (rows[name].to_numpy(np.int64) for name in ("forward", "start"))
        yield trace, States(forward_P, start_P, visible_PB, numbers[0], numbers[1])


def trace_statistics(states: States) -> dict[str, float]:
    """Return the statistics of one trace: means by group of distances, leads of distance 1, by quarter."""
    distance_PB, (fall_QB, reveal_QB) = states.distance_PB, states.falls()
    out: dict[str, float] = {}
    values = {"entropy": (states.entropy_PB, distance_PB), "top": (states.top_PB, distance_PB)}
    for name, (value, distance) in (values | {"fall": (fall_QB, reveal_QB)}).items():
        mean_D, count_D = group_means(value, distance)
        out |= {f"{name}_{d}": mean for d, mean in enumerate(mean_D)}
        out |= {f"n_{name}_{d}": count for d, count in enumerate(count_D)}
    for name, bounds in RIVALS.items():
        out[f"fall_lead_{name}"] = lead_of_neighbours(fall_QB, reveal_QB, *bounds)
        out[f"entropy_lead_{name}"] = -lead_of_neighbours(states.entropy_PB, distance_PB, *bounds)
    entropy_P = states.pass_entropy()
    quarter_P = np.minimum((4 * states.visible_PB.mean(axis=1)).astype(int), 3)
    for place in range(4):
        mine = entropy_P[quarter_P == place]
        out[f"quarter_{place}"] = float(mine.mean()) if len(mine) else np.nan
    return out | {"denoising_entropy": float(entropy_P.mean())}


def state_statistics(run: Run, traces: pd.DataFrame) -> pd.DataFrame:
    """Return ``trace_statistics`` of each trace with kept states, with the index of ``traces``.

    ``is_cut``: whether a pass after the kept ones revealed a token. Passes without masks are never kept. A
    trace that is cut has no denoising entropy, which is the mean over all passes.
    """
    places = dict(zip(_keys(traces), traces.index, strict=True))
    chunks = known_traces(run, traces, ["forward"])
    last_S = np.concatenate(
        [[], *(part.segments.reduce(np.maximum, part.columns["forward"]) for part in chunks)]
    )
    last = dict(zip(traces.index, last_S, strict=True))
    found = {
        places[key]: trace_statistics(states) | {"is_cut": states.forward_P[-1] < last[places[key]]}
        for key, states in iter_states(run)
    }
    table = pd.DataFrame.from_dict(found, orient="index")
    table.loc[table["is_cut"], "denoising_entropy"] = np.nan
    return table


def first_block_entropy(run: Run, traces: pd.DataFrame) -> dict[str, FloatArray]:
    """Return by order the mean entropy of each masked position in each pass of the first block [P, B].

    The mean is over the traces in which the position is still masked; NaN where there are none.
    """
    orders = dict(zip(_keys(traces), traces["order"].astype(str), strict=True))
    sums: dict[str, list[FloatArray]] = {}
    for key, states in iter_states(run):
        if key in orders:
            rows_PB = states.entropy_PB[states.start_P == states.start_P[0]]
            sums.setdefault(orders[key], []).append(rows_PB)
    out = {}
    for order, parts in sums.items():
        whole = np.full((len(parts), max(map(len, parts)), parts[0].shape[1]), np.nan)
        for place, rows_PB in enumerate(parts):
            whole[place, : len(rows_PB)] = rows_PB
        known = np.isfinite(whole)
        count_PB = known.sum(axis=0)
        total_PB = np.where(known, whole, 0.0).sum(axis=0)
        out[order] = np.divide(total_PB, count_PB, out=np.full(count_PB.shape, np.nan), where=count_PB > 0)
    return out


def _keys(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    """Return the values of ``TRACE`` of each row; None where they are null."""
    plain = frame[TRACE].astype(object).where(frame[TRACE].notna(), None)
    return list(plain.itertuples(index=False, name=None))
