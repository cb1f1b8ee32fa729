"""Reads ``config.json`` and similar files: one JSON object whose values are checked and refused by name.

Does not depend on architectures: a family lists its keys and their allowed values.
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
"""Upper bound of widths, vocabularies and head counts; a larger value means a broken file."""
MAX_LAYERS = 4096
MAX_CONTEXT = 2**22
"""Maximum number of positions with a rotary table; the longest published contexts are a quarter of it."""


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


class ConfigValues:
    """The values of a configuration file, read by methods that check them.

    A missing key or null gives the default; without a default it is refused.
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
            raise self.error(f"{key}={short_repr(value)} must be an integer of at least {low}{at_most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self._get(key, default)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not 0 < value < math.inf:
            raise self.error(f"{key}={short_repr(value)} must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={short_repr(value)} must be true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return one of ``allowed``."""
        value = self._get(key, default)
        if value not in allowed:
            raise self.error(f"{key}={short_repr(value)} is not supported (only {', '.join(allowed)})")
        return str(value)

    def token(self, key: str, vocab_size: int, default: int | None = None) -> int:
        """Return a token id inside the vocabulary."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key}={short_repr(value)} must be a token id (a whole number)")
        if not 0 <= value < vocab_size:
            raise self.error(f"{key}={short_repr(value)} is outside the vocabulary of {vocab_size}")
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


def refuse_unsupported(
    values: Mapping[str, Any], only: Mapping[str, tuple[object, ...]], within: str = ""
) -> None:
    """Refuse values that ``only`` does not list for their key, and unknown formats of weights.

    Missing values and null are allowed. ``within`` names the nested object that has the values.
    """
    float8_block(values)
    for key, allowed in only.items():
        if values.get(key) is not None and values[key] not in allowed:
            wanted = f" (only {' or '.join(map(repr, allowed))})" if allowed else ""
            raise ModelLoadError(f"config.json: {within}{key}={values[key]!r} is not supported{wanted}")


def float8_block(values: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return rows and columns per scale of a checkpoint in float8, None for a plain one.

    Refuses every other quantisation by name. The tensors' dtypes show which modules are in float8.
    """
    found = values.get("quantization_config") or values.get("quantization")
    if found is None:
        return None
    stated = found if isinstance(found, Mapping) else {}
    method = stated.get("quant_method") or _guessed_method(stated)
    if method != "fp8":
        raise _unsupported_quantisation(method, "fp8 with weight_block_size")
    for key, allowed in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if stated.get(key) not in (None, allowed):
            raise _unsupported_quantisation(f"fp8 with {key}={short_repr(stated[key])}", allowed)
    block, _ = stated.get("weight_block_size"), stated.get("modules_to_not_convert")
    if not isinstance(block, list) or [type(size) for size in block] != [int, int] or min(block) < 32:
        what = f"fp8 with weight_block_size={short_repr(block)}"
        raise _unsupported_quantisation(what, "two sizes of at least 32")
    return block[0], block[1]


def _guessed_method(stated: Mapping[str, Any]) -> str:
    """Return the method of a file that does not name it, from its keys."""
    if any(key.startswith(("load_in_", "bnb_")) for key in stated):
        return "bitsandbytes"
    return "mlx" if "bits" in stated else "unknown"


def _unsupported_quantisation(what: str, allowed: str) -> ModelLoadError:
    return ModelLoadError(
        f"config.json: quantization_config {what} is not supported (only {allowed}); use the checkpoint that "
        "is not quantised (--weights fp8 converts experts)"
    )


def rope_values(values: Mapping[str, Any], *, scaled: bool = False, is_partial: bool = False) -> ConfigValues:
    """Return ``rope_theta`` and ``partial_rotary_factor``, from the top level or from a nested object.

    Refuses scaled angles unless the caller reads their values itself (``scaled``), and a part of a head
    unless the family has it (``is_partial``).
    """
    found = {key: values.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    for key in ("rope_scaling", "rope_parameters"):
        nested = values.get(key) or {}
        if not isinstance(nested, Mapping):
            raise ModelLoadError(f"config.json: {key}={nested!r} is not supported (only null)")
        if not scaled:
            _refuse_scaling(key, nested)
        found |= {name: nested[name] for name in found if nested.get(name) is not None}
    if not is_partial:
        refuse_unsupported(found, {"partial_rotary_factor": (1,)})
    return ConfigValues(found)


def _refuse_scaling(key: str, nested: Mapping[str, Any]) -> None:
    """Refuse rotary angles other than the plain ones."""
    for name in ("rope_type", "type"):
        if nested.get(name) not in (None, "default"):
            raise ModelLoadError(
                f"config.json: {key}.{name}: rope type {nested[name]!r} is not supported (only 'default', no "
                "scaling)"
            )
    if nested.get("factor", 1.0) != 1.0:
        raise ModelLoadError(f"config.json: {key}.factor={nested['factor']!r} is not supported (only 1.0)")


def short_repr(value: object) -> str:
    """Return ``repr(value)``, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
