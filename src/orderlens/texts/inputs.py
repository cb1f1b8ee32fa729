"""What users hand in, made uniform: samples in their several forms and temperatures, or one clear line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, TypeAlias

from orderlens.errors import UserInputError
from orderlens.texts.samples import Sample

SampleLike: TypeAlias = Sample | str | Mapping[str, Any]
"""A sample, a prompt, or a row with the fields of a sample (``id`` may be absent)."""
Samples: TypeAlias = SampleLike | Iterable[SampleLike]
_FIELDS = tuple(item.name for item in fields(Sample))


def as_samples(given: Samples, what: str = "samples") -> list[Sample]:
    """Return samples; a single one, a string or a row counts as one, and rows without id are numbered.

    Args:
        given: one of ``SampleLike`` or several.
        what: the argument's name, for messages.
    """
    if isinstance(given, Sample | str | Mapping):
        return [_sample(given, 0, what)]
    if isinstance(given, os.PathLike):
        raise UserInputError(
            f"{what}: '{os.fspath(given)}' is a path; read the file with orderlens.load_samples(path)"
        )
    if hasattr(given, "column_names") or hasattr(given, "columns"):  # iterating a table gives its columns
        raise UserInputError(
            f"{what}: a {type(given).__name__} is no list of samples; give its rows, e.g. "
            "frame.to_dict('records') or table.to_pylist()"
        )
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise UserInputError(f"{what}: expected {_EXPECTED}, not {type(given).__name__}")
    return [_sample(item, place, what) for place, item in enumerate(given)]


_EXPECTED = "a Sample, a text, a dict with id, prompt and target, or a list of these"


def _sample(item: object, place: int, what: str) -> Sample:
    if isinstance(item, Sample):
        return _named(item, what)
    if isinstance(item, str):
        return Sample(str(place), item)
    if not isinstance(item, Mapping):
        hint = "; token ids go into Sample(id, prompt=[…])" if isinstance(item, int | Sequence) else ""
        raise UserInputError(f"{what}: item {place} is {type(item).__name__}, not {_EXPECTED}{hint}")
    unknown = [str(name) for name in item if name not in _FIELDS]
    if unknown or (item.get("prompt") is None and item.get("template") is None):
        found = f"it has '{unknown[0]}'" if unknown else "it has no 'prompt'"
        hint = "; split texts with orderlens.load_samples" if "text" in unknown else ""
        raise UserInputError(
            f"{what}: the fields of row {place} must be out of {', '.join(_FIELDS)}; {found}{hint}"
        )
    given = {name: value for name, value in item.items() if value is not None}
    return _named(Sample(**{"prompt": "", "id": str(place), **given}), what)


def _named(sample: Sample, what: str) -> Sample:
    """Return the sample with its id as text; numbers are taken by their digits."""
    name = str(sample.id) if isinstance(sample.id, Integral) else sample.id
    for part, value in (("id", name), ("task", sample.task)):
        if value is None and part == "task":
            continue
        if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UserInputError(f"{what}: a sample has the {part} {value!r}, which is no text")
    return sample if name is sample.id else replace(sample, id=name)


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return ``value`` if it is a whole number of 64 bits, and not below ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UserInputError(f"{name}={value!r} must be a whole number")
    number = int(value)
    if least is not None and number < least:
        raise UserInputError(f"{name}={number} must be at least {least}")
    if not -(2**63) <= number < 2**63:
        raise UserInputError(f"{name}={number} must fit into 64 bits")
    return number


def as_temperatures(given: float | Iterable[float]) -> list[float]:
    """Return the temperatures of a number or of several."""
    values = [given] if isinstance(given, Real | str) or not isinstance(given, Iterable) else list(given)
    for value in values:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise UserInputError(f"temperature {value!r} is not a number; give a number or a list of numbers")
    return [float(value) for value in values]
