"""Rows sorted into whole traces: which rows belong together, in which order, and what does not add up."""

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
        by: row numbers [n] in ``rows``, trace by trace in the order of the reveals.
        trace: number of the trace [n] of each of them.
        step: 0…n−1 within each trace [n].
        forward: pass [n] that committed each token.
        position: place [n] of each token.
        keys: what names each trace, in the order of ``TRACE_KEY``.
    """

    rows: Rows
    by: Ints
    trace: Ints
    step: Ints
    forward: Ints
    position: Ints
    keys: list[tuple[Any, ...]]

    def column(self, field: str) -> list[Any] | None:
        """Return the values of a field, sorted; None where the file has none."""
        found = self.rows.columns.get(field)
        if found is None or all(value is None for value in found):
            return None
        return [found[row] for row in self.by]

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
        temperature: of rows that do not say.

    Raises:
        DataFileError: a trace has a step or a place twice, a gap, or goes back to an earlier pass.
    """
    keys: dict[tuple[Any, ...], int] = {}
    trace = np.array([keys.setdefault(key, len(keys)) for key in _keys(rows, temperature)], np.int64)
    ranked = [name for name in ("step", "forward") if _given(rows, name)][:1]
    columns = [np.array(rows.columns[name], np.int64) for name in ranked]
    by = np.lexsort((*columns, trace))  # stable: rows that tie stay in the order of the file
    trace = trace[by]
    starts = np.flatnonzero(np.diff(trace, prepend=-1))
    step = np.arange(len(by)) - np.repeat(starts, np.diff(starts, append=len(by)))
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
    _check_steps(found, _from_zero(_sorted(rows, "step", by), starts))
    _check_passes(found)
    _check_positions(found)
    return found


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
    """Return numbers that count from 0: where every trace starts at 1, they were counted from 1."""
    return values - 1 if values is not None and (values[starts] == 1).all() else values


def _check_steps(traces: ForeignTraces, given: Ints | None) -> None:
    if given is None or (given == traces.step).all():
        return
    wrong = np.flatnonzero(given != traces.step)
    place = int(wrong[0])
    stated = traces.rows.columns["step"][traces.by[place]]
    if traces.step[place] and given[place] == given[place - 1]:
        raise DataFileError(
            f"{traces.where(place)}: step {stated} is already that of {traces.place(place - 1)}; "
            "where one pass commits several tokens, call the column forward"
        )
    after = f"after step {stated - (given[place] - given[place - 1])}" if traces.step[place] else "first"
    raise DataFileError(
        f"{traces.where(place)}: step {stated} comes {after}; steps count on without gaps from 0 or 1"
    )


def _check_passes(traces: ForeignTraces) -> None:
    back = np.flatnonzero((np.diff(traces.forward, prepend=0) < 0) & (traces.step > 0))
    if len(back):
        place = int(back[0])
        raise DataFileError(
            f"{traces.where(place)}: forward goes back from that of {traces.place(place - 1)}, although its "
            "step is later; passes never decrease along the steps"
        )


def _check_positions(traces: ForeignTraces) -> None:
    ranked = np.lexsort((traces.position, traces.trace))
    same = (np.diff(traces.trace[ranked]) == 0) & (np.diff(traces.position[ranked]) == 0)
    twice = np.flatnonzero(same)
    if len(twice):
        first, second = int(ranked[twice[0]]), int(ranked[twice[0] + 1])
        raise DataFileError(
            f"{traces.where(second)}: position {traces.position[second]} is already that of "
            f"{traces.place(first)}; of a token that was taken back, record the last reveal"
        )


def per_trace(traces: ForeignTraces, field: str) -> list[Any] | None:
    """Return one value per trace of a field that must not change within one.

    Raises:
        DataFileError: it does.
    """
    values = traces.column(field)
    if values is None:
        return None
    found: dict[int, Any] = {}
    for place, value in enumerate(values):
        if value is not None and found.setdefault(int(traces.trace[place]), value) != value:
            raise DataFileError(
                f"{traces.where(place)}: {field} differs from that of earlier rows of its trace"
            )
    return [found.get(trace) for trace in range(len(traces.keys))]


def check_same_text(traces: ForeignTraces, tokens: Sequence[int]) -> None:
    """Refuse traces without a temperature whose texts differ between orders: those were generated.

    Args:
        traces: sorted rows.
        tokens: token ids [n], sorted like them.
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
                f"{traces.where(place)}: another token than {traces.where(at)} has at position "
                f"{traces.position[place]}, so texts were generated; say so with --temperature T"
            )
