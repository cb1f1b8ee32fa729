"""Reading ``config.json`` and its like: one JSON object, every value checked and refused by name.

Knows nothing of architectures: a family says which keys it wants and what they may be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orderlens.errors import ModelLoadError, one_line

CONFIG = "config.json"
MAX_SIZE = 2**24
"""No width, vocabulary or head count is larger; a larger one is a broken file."""
MAX_LAYERS = 4096
MAX_CONTEXT = 2**22
"""Positions for which tables are still made; the longest published contexts are a quarter of it."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing; the folder is not a complete checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {one_line(error)}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


class Values:
    """The values of a configuration file; each is taken by a method that checks it.

    A missing key and null take the default; without a default they are refused.
    """

    def __init__(self, values: Mapping[str, Any], source: str = CONFIG) -> None:
        self._values, self._source = values, source

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_SIZE) -> int:
        """Return a whole number between ``low`` and ``high``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            at_most = f" and at most {high}" if isinstance(value, int) and value > high else ""
            raise self.error(f"{key}={_shown(value)} must be an integer of at least {low}{at_most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self._get(key, default)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not 0 < value < math.inf:
            raise self.error(f"{key}={_shown(value)} must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={_shown(value)} must be true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return one of ``allowed``."""
        value = self._get(key, default)
        if value not in allowed:
            raise self.error(f"{key}={_shown(value)} is not supported (only {', '.join(allowed)})")
        return str(value)

    def token(self, key: str, vocab_size: int, default: int | None = None) -> int:
        """Return a token id inside the vocabulary."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key}={_shown(value)} must be a token id (a whole number)")
        if not 0 <= value < vocab_size:
            raise self.error(f"{key}={_shown(value)} is outside the vocabulary of {vocab_size}")
        return value

    def error(self, message: str) -> ModelLoadError:
        """Return the error for a value that cannot be used."""
        return ModelLoadError(f"{self._source}: {message}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"lacks {key}")
        return value


def refuse_others(values: Mapping[str, Any], only: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse keys whose value is not one of those that are carried out; missing and null are allowed."""
    for key, allowed in only.items():
        if values.get(key) is not None and values[key] not in allowed:
            wanted = f" (only {' or '.join(map(repr, allowed))})" if allowed else ""
            raise ModelLoadError(f"config.json: {key}={values[key]!r} is not supported{wanted}")


def rope_values(values: Mapping[str, Any]) -> Values:
    """Return ``rope_theta`` and ``partial_rotary_factor``, from the top level or a newer nested object."""
    nested = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(nested, Mapping):
        raise ModelLoadError(f"config.json: rope_scaling={nested!r} is not supported (only null)")
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default" or nested.get("factor", 1.0) != 1.0:
        raise ModelLoadError(f"config.json: rope type {kind!r} is not supported (only 'default', no scaling)")
    keys = ("rope_theta", "partial_rotary_factor")
    return Values({key: nested.get(key, values.get(key)) for key in keys})


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
