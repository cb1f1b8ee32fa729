"""The content of a sample: its prompt and, where it was scored, its target, as ``outputs`` stores them.

Two runs may use one id for different texts. Tables and the display of a sample distinguish them by content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTENT = ("temperature", "prompt_text", "prompt_ids", "text", "token_ids")
"""Columns of ``outputs`` that this module reads."""


def content(row: Mapping[str, Any]) -> list[Any]:
    """Return the prompt and, for a scored row, the target: the text, or the tokens if no text is stored."""
    parts = [row.get("prompt_text") or row.get("prompt_ids")]
    return parts if row["temperature"] is not None else [*parts, row.get("text") or row.get("token_ids")]


def same_content(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two rows have the same prompt and, if both were scored, the same target."""
    pairs = list(zip(content(first), content(second), strict=False))
    return any(one is not None for one, _ in pairs) and all(one == other for one, other in pairs)
