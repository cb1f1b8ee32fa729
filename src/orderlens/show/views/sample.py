"""All traces of one sample, with the texts of their tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from orderlens.errors import RunError
from orderlens.registry import suggest
from orderlens.show.views.shown import MOST, Shown
from orderlens.show.views.trace import Reveals, TraceKey, TraceView, Verdict, revisions_of

KEY = tuple(item.name for item in fields(TraceKey))


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
            against: label of another one, drawn beside it.
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
        """Return the largest − smallest mean log q over the orders beside which ``trace`` was made.

        Those are the traces of the same run, task and temperature that reveal one token per pass and whose
        summed log q is a likelihood or an estimate of one; NaN where fewer than two are. Sets of tokens are
        scored as if independent, so that they differ under one and the same joint distribution.
        """
        key = trace.key
        beside = [
            other.stats.mean
            for other in self.traces
            if other.likelihood in ("exact", "estimate")
            and other.is_one_by_one
            and (other.key.run, other.key.task, other.key.temperature) == (key.run, key.task, key.temperature)
        ]
        return max(beside) - min(beside) if len(beside) > 1 else math.nan

    def piece(self, trace: TraceView, token_id: int) -> str:
        """Return the text of a token of one of the traces, or ``#id`` where its run does not store it."""
        return self.pieces.get(trace.key.run, {}).get(token_id, f"#{token_id}")


def _names(trace: TraceView) -> tuple[str, str]:
    return trace.key.order, trace.key.spec


Likelihood = Callable[[TraceKey], str | None]


def sample_view(
    sample_id: str,
    tables: Mapping[str, pa.Table],
    likelihood: Likelihood | None = None,
) -> SampleView:
    """Make the view of one sample from its rows.

    Args:
        sample_id: the sample.
        tables: rows of this sample of ``reveals`` and, where there are any, of ``revisions``, ``outputs`` and
            ``verdicts`` (those that count), and the rows of ``tokens`` that may be needed; with or without a
            column ``run``.
        likelihood: says what the summed log q of a trace is.

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
        traces.append(
            TraceView(
                key,
                labels[key],
                Reveals.of(table),
                revisions_of(other.get("revisions", {}).get(key, [])),
                output.get("text"),
                output.get("finish_reason"),
                None if likelihood is None else likelihood(key),
                next(map(Verdict.of, other.get("verdicts", {}).get(key, [])), None),
                output.get("n_passes"),
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
    """Split reveals into traces, in the order in which they stand."""
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
    """Name each trace by its order and by what else sets it apart from the others."""
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
    told = [
        f"{signs[name]}{value:g}" if isinstance(value, int | float) else f"{signs[name]}{value}"
        for name in differing
        if (value := getattr(key, name)) is not None
    ]
    return ", ".join([key.spec if seeded else key.order, *told])


def _pieces(tokens: pa.Table | None, traces: Sequence[TraceView]) -> dict[str, dict[int, str]]:
    """Return the texts of the tokens that occur, by run: two runs may have different vocabularies.

    The id −1 stands for a token of which nothing was recorded.
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
