"""``execute``: go through the units of a run, alone or as one of several workers.

What is left is found in the store, so workers need no coordinator: each asks for a unit, computes it, commits
it and looks again. The module does not know what a unit computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from orderlens.errors import StorageError, UnitsFailedError
from orderlens.store.failures import FAILED, read_failures
from orderlens.store.records import stem
from orderlens.store.writer import RunWriter

Payload = TypeVar("Payload")
Progress = Callable[[int, int], None]
_REFRESH_S = 1.0
"""Seconds of work after which a worker looks at what others committed."""
_LONGEST_PAUSE_S = 5.0


class Shift:
    """How a worker takes part; this one works alone: it closes the run, and the first failure ends the work.

    Attributes:
        place: where in the list of open units the worker looks first, so that workers which start together do
            not all ask for the same one.
        closes: whether it closes the run when all units are committed.
    """

    place: int = 0
    closes: bool = True

    def begins(self, key: str) -> None:
        """Be told that a unit is taken up."""

    def waits(self) -> None:
        """Be told that others hold all units that are left."""

    def ends(self, key: str) -> None:
        """Be told that a unit is committed."""

    def fails(self, key: str, payload: Any, error: Exception) -> None:
        """Decide about a failure: return to go on with other units."""
        raise error

    def set_aside(self) -> set[str]:
        """Return the units (as file stems) that are not to be tried again."""
        return set()


def execute(
    writer: RunWriter,
    units: Mapping[str, Payload],
    work: Callable[[Payload], Mapping[str, pa.Table]],
    on_progress: Progress | None = None,
    shift: Shift | None = None,
) -> None:
    """Compute and commit units until every one is committed by somebody or set aside, then finish the run.

    Args:
        writer: this worker's writer.
        units: unit key → what ``work`` needs.
        work: computes the tables of one unit; depends on its payload only.
        on_progress: called with (committed units, all units) at the start and after each change.
        shift: how the work is shared with others; None works alone.

    Raises:
        UnitsFailedError: units were set aside; everything else is committed.
    """
    report, mine = on_progress or _silent, shift or Shift()
    left, pause = _open_units(writer, units, mine), 0.0
    while left:
        report(len(units) - len(left), len(units))
        if _work_for_a_while(writer, left, units, work, report, mine):
            pause = 0.0
        else:
            pause = min(max(2 * pause, 0.2), _LONGEST_PAUSE_S, writer.lease_s / 8)
            mine.waits()
            time.sleep(pause)
        left = _open_units(writer, left, mine, by_name=True) or _open_units(writer, left, mine)
    report(len(units), len(units))
    if mine.closes:
        finish_or_say(writer, units)


def finish_or_say(writer: RunWriter, keys: Iterable[str]) -> None:
    """Finish the run, or say which units failed.

    Raises:
        UnitsFailedError: units were set aside.
    """
    wanted = list(keys)
    missing = set(writer.pending(wanted))
    failed = [row for row in read_failures(writer.folder) if row.key in missing] if missing else []
    if not failed:
        writer.finish(wanted)
        return
    first = failed[0]
    shown = ", ".join(first.samples[:3]) + (", …" if len(first.samples) > 3 else "")
    raise UnitsFailedError(
        f"{len({row.key for row in failed})} of {len(wanted)} units failed and were set aside, the first one "
        f"(samples {shown}) with {first.error}; everything else is kept in {writer.folder.label}, the "
        f"tracebacks are in its folder {FAILED}; the same command tries these units again"
    )


def _open_units(writer: RunWriter, keys: Iterable[str], shift: Shift, *, by_name: bool = False) -> list[str]:
    """Return what is neither committed nor set aside; ``by_name`` trusts that records are sound."""
    left = writer.unrecorded(keys) if by_name else writer.pending(keys)
    gone = shift.set_aside() if left else set()
    return [key for key in left if stem(key) not in gone]


def _silent(done: int, total: int) -> None:
    """Report nothing."""


def _work_for_a_while(
    writer: RunWriter,
    left: list[str],
    units: Mapping[str, Payload],
    work: Callable[[Payload], Mapping[str, pa.Table]],
    report: Progress,
    shift: Shift,
) -> int:
    """Try units for about a second, so that what others committed is noticed; return how many."""
    count, start = 0, time.monotonic()
    for key in _in_turn(writer, left, shift.place):
        claim = writer.claim(key)
        if claim is None:
            continue
        with claim:
            if stem(key) in shift.set_aside():  # it failed elsewhere since we looked
                continue
            _attempt(writer, key, units[key], work, shift)
        count += 1
        report(len(units) - len(left) + count, len(units))
        if time.monotonic() - start > _REFRESH_S:
            break
    return count


def _in_turn(writer: RunWriter, left: list[str], place: int) -> list[str]:
    """Return the open units that nobody holds, from this worker's place on.

    Where all are held, return them all: a claim may have expired.
    """
    held = writer.held()
    free = [key for key in left if stem(key) not in held]
    place %= max(len(free), 1)
    return [*free[place:], *free[:place]] or left


def _attempt(
    writer: RunWriter,
    key: str,
    payload: Payload,
    work: Callable[[Payload], Mapping[str, pa.Table]],
    shift: Shift,
) -> None:
    """Compute and commit one unit. A store that cannot be written to is no failure of the unit."""
    shift.begins(key)
    try:
        tables = work(payload)
        writer.commit(key, tables)
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a plug-in or a model raises is the unit's failure
        shift.fails(key, payload, error)
        return
    shift.ends(key)
