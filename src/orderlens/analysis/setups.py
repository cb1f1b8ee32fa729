"""What decoded a run: model, weights, block size and precision. Tables and figures never mix two of them.

Reads specs only; knows no traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setup:
    """What decoded a run; None where its spec does not say."""

    model: str | None = None
    block_size: int | None = None
    precision: str | None = None
    digest: str | None = None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Setup:
        """Read a run's spec."""
        model = spec.get("model")
        if not isinstance(model, Mapping):
            return cls(None if model is None else str(model), spec.get("block_size"))
        return cls(model.get("name"), spec.get("block_size"), model.get("precision"), model.get("digest"))

    def fits(self, other: Setup) -> bool:
        """Whether nothing that both say differs."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in _WORDS)
        return all(a is None or b is None or a == b for a, b in pairs)


_WORDS = {"model": "model", "block_size": "block size", "precision": "precision", "digest": "weights"}
"""Fields in the order in which they are used to tell setups apart, and their names for people."""


def labels(setups: Sequence[Setup]) -> dict[Setup, str]:
    """Return a short text per distinct setup: the model, and whatever else tells it from the others."""
    distinct = list(dict.fromkeys(setups))
    out = {item: item.model or "unnamed model" for item in distinct}
    for name, word in list(_WORDS.items())[1:]:
        groups: dict[str, set[Any]] = {}
        for item, text in out.items():
            groups.setdefault(text, set()).add(getattr(item, name))
        crowded = {text for text, values in groups.items() if len(values) > 1}
        out = {
            item: f"{text}, {word} {_short(getattr(item, name))}" if text in crowded else text
            for item, text in out.items()
        }
    return out


def differences(setups: Sequence[Setup]) -> str:
    """Return what differs, e.g. ``model (hmm, hmm:seed=7), block size (16, 32)``."""
    out = []
    for name, word in _WORDS.items():
        values = list(dict.fromkeys(getattr(item, name) for item in setups))
        if len(values) > 1:
            shown = values if name == "model" else map(_short, values)
            out.append(f"{word} ({', '.join(map(_said, shown))})")
    return ", ".join(out)


def _said(value: Any) -> str:
    return "not recorded" if value is None else str(value)


def _short(value: Any) -> str:
    text = _said(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
