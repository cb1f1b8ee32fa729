"""Traces of two runs as lists of events, and which trace of one run belongs to which of the other.

An event is a reveal, an edit or a remask. Positions are compared from the first decoded one on, so that a run
that does not store its prompt can be compared too. Does not depend on models, rules or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.metrics.segments import BoolArray, FloatArray, IntArray
from orderlens.rules import spec_of
from orderlens.store.codec import trace_starts
from orderlens.store.reader import Run
from orderlens.store.schema import TRACE_KEY

NUMBERS = ("logq", "max_logprob", "second_logprob", "entropy")
_READ = (*TRACE_KEY, "block", "forward", "position", "token_id", "is_eos", "n_tied", *NUMBERS)
_SIDE = ("prompt_ids", "prompt_text")


@dataclass(frozen=True, slots=True)
class Event:
    """One change of the canvas.

    Attributes:
        position: counted from the first decoded position.
        kind: reveal, edit or remask.
        token: the new token; −1 for a remask.
        logq: log-probability of the new token; NaN where it is not known, as the other numbers.
        max_logprob: log-probability of the position's most probable token.
        second_logprob: log-probability of its runner-up.
        entropy: of the position, in nats.
        is_eos: whether the new token ends the text.
        n_tied: positions tied for the best score; 0 where it is not known.
    """

    position: int
    kind: str
    token: int
    logq: float
    max_logprob: float
    second_logprob: float
    entropy: float
    is_eos: bool
    n_tied: int

    @property
    def name(self) -> tuple[int, str, int]:
        """What the event does, without its numbers."""
        return self.position, self.kind, self.token

    @property
    def margin(self) -> float:
        """Distance of the two most probable tokens in nats."""
        return self.max_logprob - self.second_logprob


@dataclass(frozen=True)
class Trace:
    """One trace.

    Attributes:
        key: the key columns.
        prompt: the prompt's tokens or text; None where it is not stored.
        start: the first decoded position in the sequence.
        passes: the events of each pass that changes the canvas, by position.
        forwards: the stored number of each of these passes.
        blocks: block number by position.
    """

    key: Mapping[str, Any]
    prompt: Any
    start: int
    passes: tuple[Mapping[int, Event], ...]
    forwards: tuple[int, ...]
    blocks: Mapping[int, int]

    @property
    def order(self) -> str:
        """The order with its seed."""
        return spec_of(self.key["order"], self.key["seed"])

    @property
    def events(self) -> Iterator[Event]:
        """All events in the order of passes."""
        return (event for events in self.passes for event in events.values())

    @property
    def n_reveals(self) -> int:
        """Number of tokens that are revealed, repeated reveals included."""
        return sum(event.kind == "reveal" for event in self.events)

    @cached_property
    def final(self) -> Mapping[int, Event]:
        """The last event of each position."""
        return {event.position: event for event in self.events}

    @cached_property
    def last_pass(self) -> IntArray:
        """The pass of the last event of each position [n]; −1 where there is none."""
        out = np.full(max(self.final, default=-1) + 1, -1)
        for number, events in enumerate(self.passes):
            out[list(events)] = number
        return out

    @property
    def first_eos(self) -> int:
        """The first position with an end of text; one after the last position where there is none."""
        ends = [place for place, event in self.final.items() if event.is_eos]
        return min(ends, default=max(self.final, default=-1) + 1)

    @property
    def text(self) -> list[int]:
        """The tokens up to the first end of text, which is included."""
        return [self.final[place].token for place in sorted(self.final) if place <= self.first_eos]


def read_traces(run: Run) -> list[Trace]:
    """Return all traces of a run."""
    changes = _by_key(run, "revisions")
    prompts = _by_key(run, "outputs", _SIDE)
    ends = set(_eos_ids(run.spec))
    found = []
    for chunk in run.iter_traces([name for name in _READ if name in run.reveals().columns]):
        starts = [*trace_starts(chunk).tolist(), chunk.num_rows]
        for low, high in pairwise(starts):
            part = chunk.slice(low, high - low)
            key = {name: part[name][0].as_py() for name in TRACE_KEY}
            side = prompts.get(_values(key), [{}])[0]
            prompt = side.get("prompt_ids") or side.get("prompt_text")
            found.append(_trace(key, prompt, part, changes.get(_values(key), []), ends))
    return found


def _values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in TRACE_KEY)


def _eos_ids(spec: Mapping[str, Any]) -> Sequence[int]:
    model = spec.get("model")
    return (model.get("eos_ids") or ()) if isinstance(model, Mapping) else ()


def _by_key(run: Run, name: str, columns: Sequence[str] = ()) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows of a table by the key of their trace."""
    if name not in run.tables:
        return {}
    table = run.table(name)
    wanted = [item for item in (*TRACE_KEY, *columns) if item in table.columns]
    out: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table.to_arrow(wanted if columns else None).to_pylist():
        out.setdefault(_values(row), []).append(row)
    return out


def _trace(
    key: Mapping[str, Any], prompt: Any, part: pa.Table, changes: Sequence[Mapping[str, Any]], ends: set[int]
) -> Trace:
    place, forward = (np.asarray(part[name], np.int64) for name in ("position", "forward"))
    start = int(place.min())
    numbers = {name: _floats(part, name) for name in NUMBERS}
    flags, tied, tokens = _flags(part), _counts(part, "n_tied"), np.asarray(part["token_id"], np.int64)
    passes: dict[int, dict[int, Event]] = {}
    for row, where in enumerate((place - start).tolist()):
        values = {name: float(column[row]) for name, column in numbers.items()}
        token = int(tokens[row])
        event = Event(
            where, "reveal", token, **values, is_eos=bool(flags[row]) or token in ends, n_tied=int(tied[row])
        )
        passes.setdefault(int(forward[row]), {})[where] = event
    for change in changes:
        event = _change(change, start, ends)
        passes.setdefault(change["forward"], {})[event.position] = event
    numbered = sorted(passes)
    blocks = dict(zip((place - start).tolist(), _counts(part, "block").tolist(), strict=True))
    ordered = tuple(dict(sorted(passes[number].items())) for number in numbered)
    return Trace(key, prompt, start, ordered, tuple(numbered), blocks)


def _change(row: Mapping[str, Any], start: int, ends: set[int]) -> Event:
    token = -1 if row["new_token"] is None else row["new_token"]
    logq = float("nan") if row["logq"] is None else row["logq"]
    unknown = dict.fromkeys(NUMBERS[1:], float("nan"))
    place = row["position"] - start
    return Event(place, row["event"], token, logq, **unknown, is_eos=token in ends, n_tied=0)


def _floats(part: pa.Table, name: str) -> FloatArray:
    if name not in part.column_names:
        return np.full(part.num_rows, np.nan)
    return np.asarray(part[name].cast(pa.float64()).to_numpy(), np.float64)


def _counts(part: pa.Table, name: str) -> IntArray:
    if name not in part.column_names:
        return np.zeros(part.num_rows, np.int64)
    return np.asarray(part[name].fill_null(0).to_numpy(), np.int64)


def _flags(part: pa.Table) -> BoolArray:
    if "is_eos" not in part.column_names:
        return np.zeros(part.num_rows, np.bool_)
    return np.asarray(part["is_eos"].fill_null(False).to_numpy(), np.bool_)


def pair_traces(a: Sequence[Trace], b: Sequence[Trace]) -> list[tuple[Trace | None, Trace | None]]:
    """Return which traces of two runs belong to each other; None where one run has none.

    Texts are matched by task and id, and by their prompts where the runs share no id. Within a text traces
    with an equal key belong to each other, then those of an equal order, then a single remaining one of each
    run.
    """
    by = _id if {_id(t) for t in a} & {_id(t) for t in b} else _prompt
    names = list(dict.fromkeys(by(trace) for trace in (*a, *b)))
    groups: dict[Any, tuple[list[Trace], list[Trace]]] = {name: ([], []) for name in names}
    for side, traces in enumerate((a, b)):
        for trace in traces:
            groups[by(trace)][side].append(trace)
    return [pair for group in groups.values() for pair in _pairs(*group)]


def _id(trace: Trace) -> Any:
    return trace.key["task"], trace.key["sample_id"]


def _prompt(trace: Trace) -> Any:
    return _id(trace) if trace.prompt is None else repr(trace.prompt)


def _pairs(left: list[Trace], right: list[Trace]) -> Iterator[tuple[Trace | None, Trace | None]]:
    for names in (("order", "seed", "temperature", "sample_seed"), ("order", "seed"), ("order",), ()):
        for a in list(left):
            same = [b for b in right if all(a.key[name] == b.key[name] for name in names)]
            if len(same) == 1 and (names or len(left) == 1):
                yield a, same[0]
                left.remove(a)
                right.remove(same[0])
    yield from ((a, None) for a in left)
    yield from ((None, b) for b in right)
