"""EOS cascades of all traces, by the definition of ``metrics.order_shape``, for the viewer's list."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from orderlens.metrics.order_shape import segment_eos_cascade
from orderlens.metrics.segments import Segments
from orderlens.store.codec import trace_starts
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, flag, samples_schema

_KEY = [samples_schema(run=True).field(name) for name in ("run", *KEYS)]
_SCHEMA = pa.schema([*_KEY, pa.field("cascade", pa.int64())])


def eos_cascades(run: Run) -> pa.Table:
    """Return the length of the cascade of every trace that has one, with its run and key."""
    found = [_SCHEMA.empty_table()]
    for name in run.names:
        chunks = run.only([name]).iter_traces([*KEYS, "position", "is_eos", "is_overflow"])
        found += [_of_chunk(chunk, name) for chunk in chunks if flag(chunk, "is_eos").any()]
    return pa.concat_tables(found)


def _of_chunk(chunk: pa.Table, run: str) -> pa.Table:
    starts, inside = trace_starts(chunk), ~flag(chunk, "is_overflow")
    segments = Segments(np.append(starts, chunk.num_rows)).kept(inside)
    eos = flag(chunk, "is_eos")[inside]
    length, _, _ = segment_eos_cascade(chunk["position"].to_numpy()[inside], eos, ~eos, segments)
    keys = [chunk[key].take(starts) for key in KEYS]
    table = pa.table([pa.repeat(run, len(starts)), *keys, pa.array(length.astype(np.int64))], schema=_SCHEMA)
    return table.filter(length > 0)
