"""What decoded a run: model, weights, block size and precision. Tables and figures never mix two of them.

Also which runs of a replication's folder are read together. Reads specs and names; knows no traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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


PLAN_FILE = "plan.json"
"""Marks a replication; its runs lie below ``runs``."""

RUNS_OF: dict[str, tuple[str, ...]] = {
    "score": ("score", "measure"),
    "generate": ("generate", "tokens"),
    "ending": ("generate", "questions", "tokens"),
    "sweep": ("generate", "sweep"),
}
"""Which run folders are read together; ``ending`` is for EOS: it includes the demo's questions. Folders of
earlier versions keep the texts of tokens in a run of their own, ``tokens``."""


def is_replication(place: Path) -> bool:
    """Whether ``place`` is the folder of a replication."""
    return (place / PLAN_FILE).is_file()
