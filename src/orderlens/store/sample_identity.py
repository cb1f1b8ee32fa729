"""The content of a sample: its prompt and, where it was scored, its target, as ``outputs`` stores them.

Two runs may use one id for different texts. Tables and the view of a sample tell them apart by content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTENT = ("temperature", "prompt_text", "prompt_ids", "text", "token_ids")
"""Columns of ``outputs`` that are read here."""


def content(row: Mapping[str, Any]) -> list[Any]:
    """Return prompt and, of a scored row, target: the texts, or the tokens where the text is not stored."""
    parts = [row.get("prompt_text") or row.get("prompt_ids")]
    return parts if row["temperature"] is not None else [*parts, row.get("text") or row.get("token_ids")]


def same_content(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Say whether two rows have the same prompt and, where both were scored, the same target."""
    pairs = list(zip(content(first), content(second), strict=False))
    return any(one is not None for one, _ in pairs) and all(one == other for one, other in pairs)
