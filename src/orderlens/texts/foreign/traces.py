"""Groups rows into traces, sorts them, and refuses inconsistent ones.

Rows are reveals or, in files with a column ``event``, also edits and remasks; ``events`` separates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import DataFileError
from orderlens.store.samples import label_and_seed
from orderlens.store.schema import TRACE_KEY
from orderlens.texts.foreign.rows import Rows, place_word

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForeignTraces:
    """Sorted rows.

    Attributes:
        rows: the file.
        by: row numbers [n] in ``rows``, trace by trace in the order of the reveals (or events).
        trace: number of the trace [n] of each of them.
        step: 0…n−1 within each trace [n].
        forward: pass [n] that committed each token.
        position: position [n] of each token.
        keys: key of each trace, in the order of ``TRACE_KEY``.
    """

    rows: Rows
    by: Ints
    trace: Ints
    step: Ints
    forward: Ints
    position: Ints
    keys: list[tuple[Any, ...]]

    def column(self, field: str) -> list[Any] | None:
        """Return the sorted values of a field; None if the file has no values."""
        found = self.rows.columns.get(field)
        if found is None or all(value is None for value in found):
            return None
        return [found[row] for row in self.by]

    @property
    def has_events(self) -> bool:
        """Whether the file tells reveals, edits and remasks apart."""
        return "event" in self.rows.columns

    def take(self, places: Ints) -> ForeignTraces:
        """Return some of the sorted rows: steps count from 0 again, traces without a row are dropped."""
        left, trace = np.unique(self.trace[places], return_inverse=True)
        return ForeignTraces(
            self.rows,
            self.by[places],
            trace,
            _counted(trace),
            self.forward[places],
            self.position[places],
            [self.keys[number] for number in left],
        )

    def where(self, place: int) -> str:
        """Return the place in the file, the sample and the order of a sorted row."""
        key = dict(zip(TRACE_KEY, self.keys[self.trace[place]], strict=True))
        return f"{self.rows.where(int(self.by[place]))} (sample '{key['sample_id']}', order '{key['order']}')"

    def place(self, place: int) -> str:
        """Return the place in the file of a sorted row: ``line 7``."""
        return f"{place_word(self.rows.path)} {self.rows.numbers[int(self.by[place])]}"


def sort_traces(rows: Rows, temperature: float | None = None) -> ForeignTraces:
    """Sort rows into traces.

    Args:
        rows: the file.
        temperature: temperature of rows without one.

    Raises:
        DataFileError: a trace repeats a step or a position, has a gap, or returns to an earlier pass.
    """
    keys: dict[tuple[Any, ...], int] = {}
    trace = np.array([keys.setdefault(key, len(keys)) for key in _keys(rows, temperature)], np.int64)
    by = np.lexsort((*_ranks(rows), trace))  # stable: rows that tie stay in the order of the file
    trace = trace[by]
    starts = np.flatnonzero(np.diff(trace, prepend=-1))
    step = _counted(trace)
    forward = _from_zero(_sorted(rows, "forward", by), starts)
    position = _sorted(rows, "position", by)
    found = ForeignTraces(
        rows,
        by,
        trace,
        step,
        step if forward is None else forward,
        step if position is None else position,
        list(keys),
    )
    if found.has_events:
        _check_event_steps(found)
    else:
        _check_steps(found, _from_zero(_sorted(rows, "step", by), starts))
    _check_passes(found)
    _check_positions(found)
    return found


def _ranks(rows: Rows) -> list[Ints]:
    """Return what sorts the rows of a trace, the least important first."""
    names = [name for name in ("step", "forward") if _given(rows, name)]
    if "event" not in rows.columns:
        names = names[:1]
    return [
        np.array([-1 if value is None else value for value in rows.columns[name]], np.int64) for name in names
    ]


def _counted(trace: Ints) -> Ints:
    """Return 0…n−1 within each run of equal numbers."""
    starts = np.flatnonzero(np.diff(trace, prepend=-1))
    return np.arange(len(trace)) - np.repeat(starts, np.diff(starts, append=len(trace)))


def _keys(rows: Rows, temperature: float | None) -> list[tuple[Any, ...]]:
    n = len(rows)
    columns = {name: rows.columns.get(name) or [None] * n for name in TRACE_KEY}
    out = []
    for values in zip(*columns.values(), strict=True):
        key = dict(zip(TRACE_KEY, values, strict=True))
        label, seed = label_and_seed(key["order"])
        key |= {"order": label, "seed": key["seed"] if key["seed"] is not None else seed}
        if key["temperature"] is None:
            key["temperature"] = temperature
        if key["sample_seed"] is None and key["temperature"]:
            key["sample_seed"] = 0
        out.append(tuple(key.values()))
    return out


def _given(rows: Rows, field: str) -> bool:
    return any(value is not None for value in rows.columns.get(field, ()))


def _sorted(rows: Rows, field: str, by: Ints) -> Ints | None:
    return np.array(rows.columns[field], np.int64)[by] if _given(rows, field) else None


def _from_zero(values: Ints | None, starts: Ints) -> Ints | None:
    """Return numbers that count from 0; if every trace starts at 1, subtract 1."""
    return values - 1 if values is not None and (values[starts] == 1).all() else values


def _check_steps(traces: ForeignTraces, given: Ints | None) -> None:
    if given is None or (given == traces.step).all():
        return
    wrong = np.flatnonzero(given != traces.step)
    place = int(wrong[0])
    stated = traces.rows.columns["step"][traces.by[place]]
    if traces.step[place] and given[place] == given[place - 1]:
        raise DataFileError(
            f"{traces.where(place)}: step {stated} also occurs in {traces.place(place - 1)}; "
            "if one pass commits several tokens, name the column forward"
        )
    after = f"after step {stated - (given[place] - given[place - 1])}" if traces.step[place] else "first"
    raise DataFileError(
        f"{traces.where(place)}: step {stated} comes {after}; steps must start at 0 or 1 and have no gaps"
    )


def _check_event_steps(traces: ForeignTraces) -> None:
    """Refuse steps that repeat or decrease along the passes; rows of revisions may have none."""
    last: dict[int, tuple[int, int]] = {}
    for place, step in enumerate(traces.column("step") or ()):
        if step is None:
            continue
        trace = int(traces.trace[place])
        before, at = last.get(trace, (-1, -1))
        if step <= before:
            raise DataFileError(
                f"{traces.where(place)}: step {step} comes after step {before} of {traces.place(at)}, whose "
                "pass is not later; steps increase along the passes"
            )
        last[trace] = step, place


def _check_passes(traces: ForeignTraces) -> None:
    back = np.flatnonzero((np.diff(traces.forward, prepend=0) < 0) & (traces.step > 0))
    if len(back):
        place = int(back[0])
        raise DataFileError(
            f"{traces.where(place)}: forward is smaller than in {traces.place(place - 1)}, although its step "
            "is later; passes must not decrease along the steps"
        )


def _check_positions(traces: ForeignTraces) -> None:
    """Refuse a position that comes twice; with events, twice in one pass."""
    keys = [traces.position, traces.trace]
    if traces.has_events:
        keys.insert(1, traces.forward)
    ranked = np.lexsort(keys)
    same = np.all([np.diff(key[ranked]) == 0 for key in keys], axis=0)
    twice = np.flatnonzero(same)
    if len(twice):
        first, second = int(ranked[twice[0]]), int(ranked[twice[0] + 1])
        remedy = (
            "in the same pass; a token replaced within one pass is one row with event edit"
            if traces.has_events
            else "give every change a row with a column event (reveal, edit, remask) and its pass (forward)"
        )
        raise DataFileError(
            f"{traces.where(second)}: position {traces.position[second]} also occurs in "
            f"{traces.place(first)}; {remedy}"
        )


def per_trace(traces: ForeignTraces, field: str) -> list[Any] | None:
    """Return one value per trace of a field that must be constant within a trace.

    Raises:
        DataFileError: it is not constant.
    """
    values = traces.column(field)
    if values is None:
        return None
    found: dict[int, Any] = {}
    for place, value in enumerate(values):
        if value is not None and found.setdefault(int(traces.trace[place]), value) != value:
            raise DataFileError(
                f"{traces.where(place)}: {field} differs from earlier rows of its trace; it must be constant"
            )
    return [found.get(trace) for trace in range(len(traces.keys))]


def check_same_text(traces: ForeignTraces, tokens: Sequence[int]) -> None:
    """Refuse traces without a temperature whose texts differ between orders: they were generated.

    Args:
        traces: sorted rows.
        tokens: token ids [n] of the sorted rows.
    """
    seen: dict[tuple[str, str, int], tuple[int, int]] = {}
    for place, token in enumerate(tokens):
        key = dict(zip(TRACE_KEY, traces.keys[traces.trace[place]], strict=True))
        if key["temperature"] is not None:
            continue
        name = (key["task"], key["sample_id"], int(traces.position[place]))
        earlier, at = seen.setdefault(name, (token, place))
        if earlier != token:
            raise DataFileError(
                f"{traces.where(place)}: the token differs from {traces.where(at)} at position "
                f"{traces.position[place]}, so the texts were generated; add --temperature T"
            )
