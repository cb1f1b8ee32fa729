"""All traces of one sample with the texts of their tokens, read from the row groups that contain them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import RunError
from orderlens.metrics.census import SpanCensus
from orderlens.registry import suggest
from orderlens.rules import spec_of
from orderlens.show.views.film import film
from orderlens.show.views.sketch import WIDTH, Drawable, markup, sketch
from orderlens.show.views.trace import Reveals, ShownVerdict, Standing, TraceKey, TraceView, revisions_of
from orderlens.store.codec import sort_rows
from orderlens.store.reader import Run
from orderlens.store.samples import likelihood, same_content
from orderlens.store.sources import RunSource
from orderlens.store.verdicts import latest_verdicts

KEY = tuple(item.name for item in fields(TraceKey))
MOST = 4
"""Traces that are drawn unless some are named."""
_TABLES = ("reveals", "revisions", "outputs", "verdicts")


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """Traces of one sample, drawn when they are displayed."""

    sample: Drawable
    traces: tuple[TraceView, ...]

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """Return the drawing in lines of ``width`` characters."""
        return sketch(self.sample, self.traces, width)

    def film(self) -> str:
        """Return an animated SVG in which the tokens appear in the order of their reveal."""
        return film(self.sample, self.traces)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return markup(self.sample, self.traces)


@dataclass(frozen=True, slots=True, repr=False)
class SampleView:
    """One sample.

    Attributes:
        sample_id: its id.
        traces: by order as the run lists them.
        pieces: run → token id → its text, decoded alone; ids whose text is not stored are absent.
        prompt: the prompt as text; None when not stored.
        suffix: given text after the target; None where there is none.
    """

    sample_id: str
    traces: tuple[TraceView, ...]
    pieces: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    prompt: str | None = None
    suffix: str | None = None

    def __repr__(self) -> str:
        return f"SampleView({self.sample_id!r}: {', '.join(map(repr, self.traces))})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self.show()._repr_html_()

    def show(self, order: str | None = None, against: str | None = None) -> Shown:
        """Return traces to look at: text at a prompt, HTML in a notebook.

        Args:
            order: label of a trace, as for ``trace``; the first few traces by default.
            against: label of another trace, drawn next to it.
        """
        named = [label for label in (order, against) if label is not None]
        return Shown(self, tuple(map(self.trace, named)) or self.traces[:MOST])

    @property
    def labels(self) -> list[str]:
        """Names of the traces, all different."""
        return [trace.label for trace in self.traces]

    def trace(self, label: str) -> TraceView:
        """Return a trace by its label or id; the order alone suffices where it has one trace.

        Raises:
            RunError: there is none, or more than one.
        """
        exact = [trace for trace in self.traces if label in (trace.label, trace.key.id)]
        found = exact or [trace for trace in self.traces if label in _names(trace)]
        if len(found) == 1:
            return found[0]
        known = f"(known: {', '.join(self.labels)})"
        if found:
            raise RunError(f"sample '{self.sample_id}' has {len(found)} traces of '{label}' {known}")
        raise RunError(
            f"sample '{self.sample_id}' has no trace '{label}'{suggest(label, self.labels)} {known}"
        )

    def gap(self, trace: TraceView) -> float:
        """Return the largest − smallest mean log q over the orders that are comparable with ``trace``.

        Comparable are traces of a fixed text in the same run and task with one token per pass whose summed
        log q is a likelihood or an estimate of one. NaN with fewer than two, and for generated text: there
        each order writes another text. Sets of tokens differ even under one joint distribution.
        """
        key = trace.key
        comparable = [
            other.stats.mean
            for other in self.traces
            if other.likelihood in ("exact", "estimate")
            and other.has_one_token_per_pass
            and (other.key.run, other.key.task, other.key.temperature) == (key.run, key.task, None)
        ]
        is_fixed = key.temperature is None and len(comparable) > 1
        return max(comparable) - min(comparable) if is_fixed else math.nan

    def piece(self, trace: TraceView, token_id: int) -> str:
        """Return the text of a token of one of the traces, or ``#id`` where its run does not store it."""
        return self.pieces.get(trace.key.run, {}).get(token_id, f"#{token_id}")


def _names(trace: TraceView) -> tuple[str, str]:
    return trace.key.order, trace.key.spec


def fetch_sample(
    run: Run, sample_id: str, *, orders: Sequence[str] | None = None, name: str | None = None
) -> SampleView:
    """Return the view of a sample over all runs that hold it; see ``Run.sample``.

    Args:
        run: one or several opened runs.
        sample_id: the sample.
        orders: only these orders; all by default.
        name: one of the runs; others join in where they hold the id with the same prompt.
    """
    sources = run.sources
    if name is not None and name not in sources:
        raise RunError(f"there is no run '{name}' (known: {', '.join(sources)})")
    tables = {table: _rows_of(sources, sample_id, table) for table in _TABLES}
    if name is not None:
        tables = _of_run(tables, name)
    if not tables["reveals"].num_rows:
        raise RunError(f"there is no sample '{sample_id}' in {', '.join(sources)}; {_some_ids(sources)}")
    if orders is not None:
        tables["reveals"] = _of_orders(tables["reveals"], sample_id, orders)
    tables["tokens"] = _tokens(sources, tables)
    if tables["verdicts"].num_rows:
        tables["verdicts"] = latest_verdicts(tables["verdicts"], rules=run.task_rules)

    def stated(key: TraceKey, n_before: int) -> str | None:
        return likelihood(sources[key.run].spec.get("likelihood"), key.order, key.temperature, n_before)

    found = {table: rows for table, rows in tables.items() if rows.num_rows}
    return sample_view(sample_id, found, stated, _standings(_rows_of(sources, sample_id, "census")))


def _standings(rows: pa.Table) -> Standings:
    """Return what finds a trace's place among all orders, where its run has a census of the text."""
    spans: dict[str, SpanCensus] = {}
    for row in rows.to_pylist():
        spans[row["run"]] = SpanCensus(np.reshape(row["log_p"], (-1, len(row["positions"]))))

    def standing(key: TraceKey, reveals: Reveals) -> Standing | None:
        if (span := spans.get(key.run)) is None:
            return None
        log_p = float(reveals.logq.sum())
        share, error = span.share_below([log_p])
        return Standing(float(share[0]), float(error[0]), span.n_orders, span.best.log_p - log_p)

    return standing


def _some_ids(sources: Mapping[str, RunSource]) -> str:
    """List a few sample ids of the runs, for a message."""
    found: dict[str, None] = {}
    for source in sources.values():
        for chunk in source.scan("reveals", ["sample_id"]) if "reveals" in source.tables() else ():
            found |= dict.fromkeys(pc.unique(chunk["sample_id"]).to_pylist())
            if len(found) > 3:
                return f"there are {', '.join([*found][:3])}, …"
    return f"there are {', '.join(found)}" if found else "it holds no traces"


def _rows_of(sources: Mapping[str, RunSource], sample_id: str, name: str) -> pa.Table:
    found = []
    for run, source in sources.items():
        if name in source.tables():
            chunks = [part for part in source.find(sample_id, name=name) if part.num_rows]
            found += [chunk.append_column("run", pa.repeat(run, chunk.num_rows)) for chunk in chunks]
    return sort_rows(pa.concat_tables(found, promote_options="permissive"), name) if found else pa.table({})


def _of_run(tables: Mapping[str, pa.Table], run: str) -> dict[str, pa.Table]:
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


def _tokens(sources: Mapping[str, RunSource], tables: Mapping[str, pa.Table]) -> pa.Table:
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


Likelihood = Callable[[TraceKey, int], str | None]
Standings = Callable[[TraceKey, Reveals], Standing | None]


def sample_view(
    sample_id: str,
    tables: Mapping[str, pa.Table],
    likelihood: Likelihood | None = None,
    standing: Standings | None = None,
) -> SampleView:
    """Make the view of one sample from its rows.

    Args:
        sample_id: the sample.
        tables: rows of this sample of ``reveals`` and, where there are any, of ``revisions``, ``outputs`` and
            ``verdicts`` (those that count), and the rows of ``tokens`` that may be needed; with or without a
            column ``run``.
        likelihood: returns the kind of a trace's summed log q (exact, estimate or none) from its key and its
            number of overflow reveals before requested ones.
        standing: returns the place of a trace among all orders of its span.

    Raises:
        RunError: there is no trace of this sample.
    """
    parts = _by_trace(tables["reveals"])
    if not parts:
        raise RunError(f"there is no trace of sample '{sample_id}'")
    other = {name: _rows(tables[name]) for name in ("revisions", "outputs", "verdicts") if name in tables}
    labels = _labels(list(parts))
    traces = []
    for key, table in parts.items():
        output = next(iter(other.get("outputs", {}).get(key, [])), {})
        reveals = Reveals.of(table)
        traces.append(
            TraceView(
                key,
                labels[key],
                reveals,
                revisions_of(other.get("revisions", {}).get(key, [])),
                output.get("text"),
                output.get("finish_reason"),
                None if likelihood is None else likelihood(key, reveals.n_overflow_before),
                next(map(ShownVerdict.of, other.get("verdicts", {}).get(key, [])), None),
                output.get("n_passes"),
                None if standing is None else standing(key, reveals),
            )
        )
    texts = [row for rows in other.get("outputs", {}).values() for row in rows]
    return SampleView(
        sample_id,
        tuple(traces),
        _pieces(tables.get("tokens"), traces),
        next((row["prompt_text"] for row in texts if row["prompt_text"] is not None), None),
        next((row["suffix_text"] for row in texts if row.get("suffix_text") is not None), None),
    )


def _key(row: Mapping[str, Any]) -> TraceKey:
    return TraceKey(**{name: row[name] for name in KEY if row.get(name) is not None})


def _by_trace(table: pa.Table) -> dict[TraceKey, pa.Table]:
    """Split reveals into traces, in their stored order."""
    rows: dict[TraceKey, list[int]] = {}
    present = table.select([name for name in KEY if name in table.column_names])
    for place, row in enumerate(present.to_pylist()):
        rows.setdefault(_key(row), []).append(place)
    return {key: table.take(places) for key, places in rows.items()}


def _rows(table: pa.Table) -> dict[TraceKey, list[Mapping[str, Any]]]:
    out: dict[TraceKey, list[Mapping[str, Any]]] = {}
    for row in table.to_pylist():
        out.setdefault(_key(row), []).append(row)
    return out


def _labels(keys: Sequence[TraceKey]) -> dict[TraceKey, str]:
    """Name each trace by its order and by the other keys in which the traces differ."""
    differing = [
        name
        for name in ("run", "task", "temperature", "sample_seed")
        if len({getattr(key, name) for key in keys}) > 1
    ]
    return {key: _label(key, differing, _has_seeds(key.order, keys)) for key in keys}


def _has_seeds(order: str, keys: Sequence[TraceKey]) -> bool:
    return len({key.seed for key in keys if key.order == order}) > 1


def _label(key: TraceKey, differing: Sequence[str], seeded: bool) -> str:
    signs = {"run": "run ", "task": "", "temperature": "T = ", "sample_seed": "draw "}
    parts = [
        f"{signs[name]}{value:g}" if isinstance(value, int | float) else f"{signs[name]}{value}"
        for name in differing
        if (value := getattr(key, name)) is not None
    ]
    return ", ".join([key.spec if seeded else key.order, *parts])


def _pieces(tokens: pa.Table | None, traces: Sequence[TraceView]) -> dict[str, dict[int, str]]:
    """Return the texts of the tokens that occur, by run: two runs may have different vocabularies.

    The id −1 marks a token that was not recorded.
    """
    wanted: dict[str, set[int | None]] = {}
    for trace in traces:
        ids: set[int | None] = {int(token) for token in trace.reveals.token_id}
        ids |= {token for item in trace.revisions for token in (item.old_token, item.new_token)}
        wanted.setdefault(trace.key.run, set()).update(ids)
    out: dict[str, dict[int, str]] = {run: {-1: "?"} if -1 in ids else {} for run, ids in wanted.items()}
    for row in [] if tokens is None else tokens.to_pylist():
        run = row.get("run") or ""
        if row["token_id"] in wanted.get(run, ()) and row["piece"] is not None:
            out[run][row["token_id"]] = row["piece"]
    return out
