"""The plan of a study of several runs, in its folder: written once and compared when the work goes on.

A plan is a frozen dataclass of plain values. Knows no study: ``replicate`` and ``frontier`` have their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from orderlens.common.files import write_text
from orderlens.errors import RunError, UserInputError
from orderlens.registry import refuse_unknown

T = TypeVar("T")


def steps_in_order(kind: str, asked: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the asked steps of a study as they follow each other; an unknown one gets the nearest known."""
    wanted = list(asked)
    for name in wanted:
        refuse_unknown(kind, name, known)
    return [name for name in known if name in wanted]


def refuse_below(plan: object, **least: int) -> None:
    """Refuse a plan with a field below its least value."""
    for name, value in least.items():
        if getattr(plan, name) < value:
            raise UserInputError(f"{name}={getattr(plan, name)} must be at least {value}")


def from_record(kind: type[T], record: Mapping[str, Any]) -> T:
    """Return the plan that a record describes; lists are tuples, fields of other versions are left out."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    given = {name: value for name, value in record.items() if name in known}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def read_file(path: Path, what: str, make: Callable[[dict[str, Any]], T]) -> T | None:
    """Return what ``make`` makes of the file's record, None in a new or empty folder.

    Raises:
        RunError: the file is damaged, or its folder holds something else than a study of this kind.
    """
    if not path.is_file():
        _refuse_foreign(path.parent, what)
        return None
    try:
        return make(json.loads(path.read_text(encoding="utf-8")))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); choose a new folder") from None


def write_file(path: Path, record: Mapping[str, Any]) -> None:
    """Write or replace the file; missing folders are made."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def refuse_other(folder: Path, what: str, old: T, new: T, free: Collection[str] = ()) -> None:
    """Refuse to go on with another plan.

    Args:
        folder: of the study.
        what: its kind.
        old: the plan it was started with.
        new: the plan asked for.
        free: fields that may differ. Of ``data`` only the file's name counts: its folder differs elsewhere.

    Raises:
        RunError: names the first field that differs.
    """
    for name in (item.name for item in fields(old)):  # type: ignore[arg-type]
        before, now = getattr(old, name), getattr(new, name)
        if name == "data":
            before, now = Path(before).name, Path(now).name
        if name not in free and before != now:
            raise RunError(
                f"{folder} holds a {what} with another {name} ({_difference(before, now)}); "
                "choose a new folder or the same options"
            )


def _refuse_foreign(folder: Path, what: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose a new folder")
    names = sorted(item.name for item in folder.iterdir() if item.name[0] != ".") if folder.exists() else []
    if names:
        raise RunError(
            f"{folder} is not empty and holds no {what} ({names[0]}, …); choose a new or an empty folder"
        )


def _difference(before: Any, now: Any) -> str:
    """Say what was asked for otherwise; of long lists only the entries that differ."""
    if not isinstance(before, tuple) or set(before) == set(now):
        return f"{_shown(before)}, asked for {_shown(now)}"
    missing = tuple(entry for entry in now if entry not in before)
    extra = tuple(entry for entry in before if entry not in now)
    parts = [f"without {_shown(missing)}"] if missing else []
    return "; ".join([*parts, f"with {_shown(extra)}, not asked for"] if extra else parts)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
