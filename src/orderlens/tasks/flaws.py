"""What makes a document ungradable: each function returns one line that names the field, or None.

A reference that is missing or unreadable is the data's fault; graded as wrong it would look like the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from orderlens.errors import DataFileError
from orderlens.tasks.graders import as_index, gold_letter, reference_number
from orderlens.tasks.letters import LETTERS

Flaw: TypeAlias = Callable[[Mapping[str, Any]], str | None]


def number_flaw(field: str, mark: str = "") -> Flaw:
    """Return a check that ``field`` holds a number, behind the last ``mark`` where one is given."""

    def flaw(doc: Mapping[str, Any]) -> str | None:
        value = doc.get(field)
        if value is None:
            return f"has no '{field}'"
        shown = value.rpartition(mark)[2] if mark and isinstance(value, str) else value
        if reference_number(shown) is None:
            return f"'{field}' holds no reference number (it is {value!r:.60})"
        return None

    return flaw


def letter_flaw(options: str, letter: str | None, index: str) -> Flaw:
    """Return a check that a reference letter or index is there, and among the options where those are given.

    Args:
        options: field with the list of options.
        letter: field with the reference letter, None where there is only an index.
        index: field with the 0-based index of the right option.
    """

    def flaw(doc: Mapping[str, Any]) -> str | None:
        given = doc.get(options)
        if given is not None and (not isinstance(given, list | tuple) or not given):
            return f"'{options}' is not a list of options (it is {given!r:.60})"
        fields = f"'{letter}' or '{index}'" if letter else f"'{index}'"
        if all(doc.get(name) is None for name in (letter, index) if name):
            return f"has no {fields}"
        gold = gold_letter(doc.get(letter) if letter else None, as_index(doc.get(index)))
        if gold is None or (given is not None and gold not in LETTERS[: len(given)]):
            value = next(doc[name] for name in (letter, index) if name and doc.get(name) is not None)
            return f"{fields} names no option (it is {value!r:.60})"
        return None

    return flaw


def instruction_flaw(doc: Mapping[str, Any]) -> str | None:
    """Check IFEval's two lists: names of instructions and their arguments, of one length."""
    for field in ("instruction_id_list", "kwargs"):
        if doc.get(field) is None:
            return f"has no '{field}'"
        if not isinstance(doc[field], list | tuple):
            return f"'{field}' is not a list (it is {doc[field]!r:.60})"
    names, kwargs = doc["instruction_id_list"], doc["kwargs"]
    if not names:
        return "'instruction_id_list' is empty"
    if not all(isinstance(name, str) for name in names):
        return "'instruction_id_list' holds something that is no text"
    return (
        f"'kwargs' has {len(kwargs)} entries for {len(names)} instructions"
        if len(kwargs) != len(names)
        else None
    )


def require_gradable(task: str, flaw: str | None, row: str) -> None:
    """Raise when a document has a flaw; ``row`` says which one it is."""
    if flaw is not None:
        raise DataFileError(f"{task}, {row}: {flaw}")
