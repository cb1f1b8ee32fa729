"""One sample or one trace of one or several runs: only the row groups that hold it are touched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import RunError, UserInputError
from orderlens.rules import spec_of
from orderlens.show.views import SampleView, TraceKey, sample_view
from orderlens.store.codec import sort_rows, trace_starts
from orderlens.store.contents import same_content
from orderlens.store.frame import fitted
from orderlens.store.samples import likelihood
from orderlens.store.schema import TRACE_KEY
from orderlens.store.sources import Source
from orderlens.store.verdicts import Rules, latest_verdicts

_TABLES = ("reveals", "revisions", "outputs", "verdicts")
_SEEDED = re.compile(r"(?P<name>[^:+]+):(?P<seed>[0-9]{1,18})(?P<rest>(\+.*)?)")


def fetch_sample(
    sources: Mapping[str, Source],
    sample_id: str,
    orders: Sequence[str] | None,
    run: str | None,
    rules: Callable[[], Rules],
) -> SampleView:
    """Return the view of a sample over all runs that hold it; see ``Run.sample``.

    ``rules`` says by which rule each task is graded; called only where the sample has verdicts.
    """
    if run is not None and run not in sources:
        raise RunError(f"there is no run '{run}' (known: {', '.join(sources)})")
    tables = {name: _rows(sources, sample_id, name) for name in _TABLES}
    if run is not None:
        tables = _beside(tables, run)
    if not tables["reveals"].num_rows:
        raise RunError(f"there is no sample '{sample_id}' in {', '.join(sources)}; {_some_ids(sources)}")
    if orders is not None:
        tables["reveals"] = _of_orders(tables["reveals"], sample_id, orders)
    tables["tokens"] = _tokens(sources, tables)
    if tables["verdicts"].num_rows:
        tables["verdicts"] = latest_verdicts(tables["verdicts"], rules=rules())

    def stated(key: TraceKey) -> str | None:
        return likelihood(sources[key.run].spec.get("likelihood"), key.order, key.temperature)

    return sample_view(sample_id, {name: table for name, table in tables.items() if table.num_rows}, stated)


def _some_ids(sources: Mapping[str, Source]) -> str:
    """Name a few samples that there are; a run without any says so."""
    found: dict[str, None] = {}
    for source in sources.values():
        for chunk in source.scan("reveals", ["sample_id"]) if "reveals" in source.tables() else ():
            found |= dict.fromkeys(pc.unique(chunk["sample_id"]).to_pylist())
            if len(found) > 3:
                return f"there are {', '.join([*found][:3])}, …"
    return f"there are {', '.join(found)}" if found else "it holds no traces"


def _rows(sources: Mapping[str, Source], sample_id: str, name: str) -> pa.Table:
    found = []
    for run, source in sources.items():
        if name in source.tables():
            chunks = [part for part in source.find(sample_id, name=name) if part.num_rows]
            found += [chunk.append_column("run", pa.repeat(run, chunk.num_rows)) for chunk in chunks]
    return sort_rows(pa.concat_tables(found, promote_options="permissive"), name) if found else pa.table({})


def _beside(tables: Mapping[str, pa.Table], run: str) -> dict[str, pa.Table]:
    """Keep the rows of ``run``, and of other runs those tasks in which the id has the same content."""
    outputs = tables["outputs"].to_pylist()
    own = [row for row in outputs if row["run"] == run]
    same = {
        (row["run"], row["task"])
        for row in outputs
        if any(row["task"] == mine["task"] and same_content(row, mine) for mine in own)
    }

    def kept(table: pa.Table) -> pa.Table:
        pairs = zip(table["run"].to_pylist(), table["task"].to_pylist(), strict=True)
        return table.filter(pa.array([pair[0] == run or pair in same for pair in pairs]))

    return {name: kept(table) if table.num_rows else table for name, table in tables.items()}


def _of_orders(reveals: pa.Table, sample_id: str, orders: Sequence[str]) -> pa.Table:
    """Keep the traces whose order, with or without its seed, is among ``orders``."""
    pairs = zip(reveals["order"].to_pylist(), reveals["seed"].to_pylist(), strict=True)
    named = [(order, spec_of(order, seed)) for order, seed in pairs]
    present = {name for both in named for name in both}
    for order in orders:
        if order not in present:
            known = ", ".join(sorted({name for name, _ in named}))
            raise RunError(f"sample '{sample_id}' has no trace of order '{order}' (known: {known})")
    return reveals.filter(pa.array([not {*both}.isdisjoint(orders) for both in named]))


def _tokens(sources: Mapping[str, Source], tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the texts of the tokens that occur, with their run."""
    columns = [("reveals", "token_id"), ("revisions", "old_token"), ("revisions", "new_token")]
    parts = [tables[name][column] for name, column in columns if tables[name].num_rows]
    wanted = pc.unique(pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.int32()))
    found = []
    for run in pc.unique(tables["reveals"]["run"]).to_pylist():
        for chunk in sources[run].scan("tokens", ["token_id", "piece"]):
            kept = chunk.filter(pc.is_in(chunk["token_id"], value_set=wanted))
            found.append(kept.append_column("run", pa.repeat(run, kept.num_rows)))
    return pa.concat_tables(found) if found else pa.table({})


def fetch_trace(
    sources: Mapping[str, Source], schema: pa.Schema, sample_id: str, order: str, key: Mapping[str, Any]
) -> pa.Table:
    """Return the reveals of one trace with the columns of ``schema``; see ``Run.trace``."""
    name, seed = _order_and_seed(order)
    narrowed = {**({} if seed is None else {"seed": seed}), **key}
    table = _find(sources, schema, sample_id, name, narrowed)
    starts = trace_starts(table)
    if len(starts) != 1:
        raise RunError(_not_one_trace(sample_id, order, table.take(starts)))
    return table


def _find(
    sources: Mapping[str, Source], schema: pa.Schema, sample_id: str, order: str, key: Mapping[str, Any]
) -> pa.Table:
    unknown = set(key) - {*TRACE_KEY, "run"}
    if unknown:
        raise UserInputError(f"a trace is not named by '{min(unknown)}' (use {', '.join(TRACE_KEY)} or run)")
    found = []
    for run, source in sources.items():
        if key.get("run", run) == run:
            found += [fitted(chunk, schema, run) for chunk in source.find(sample_id, order)]
    table = pa.concat_tables(found) if found else schema.empty_table()
    for name, value in key.items():
        if name != "run":
            table = table.filter(pc.is_null(table[name]) if value is None else pc.equal(table[name], value))
    return table


def _order_and_seed(order: str) -> tuple[str, int | None]:
    """Split ``random:3+top=4`` into the label of its traces, ``random+top=4``, and the seed."""
    found = _SEEDED.fullmatch(order)
    return (found["name"] + found["rest"], int(found["seed"])) if found else (order, None)


def _not_one_trace(sample_id: str, order: str, found: pa.Table) -> str:
    if not found.num_rows:
        return f"there is no trace of sample '{sample_id}' under order '{order}'"
    names = [name for name in ("run", *TRACE_KEY) if name in found.column_names]
    differing = [name for name in names if len(pc.unique(found[name])) > 1]
    return (
        f"sample '{sample_id}' has {found.num_rows} traces under order '{order}'; "
        f"they differ in {', '.join(differing)}: give it too"
    )
