"""Replaces characters that are unsafe in a terminal, page or notebook by their escapes.

Texts, ids and file names come from outside. A control character in them could move the terminal's cursor,
hide or recolour text, or set a title or a link; a bidirectional control could reorder text, also on a page.
Letters of every script, combining marks and emoji stay. ``plain`` converts values for JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1 (CSI, OSC, …)
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides, isolates
    "\u2028\u2029\ufff9-\ufffb"  # line separators, interlinear anchors
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff"  # lone surrogates
    "]"
)


def printable(text: str) -> str:
    r"""Return ``text`` with every unsafe character as ``\x1b``, ``\u202e`` or ``\U000e0041``."""
    return UNSAFE.sub(lambda found: escape(ord(found[0])), text)


def escape(code: int) -> str:
    """Return the escape of a code point."""
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(value: Any) -> Any:
    """Return ``value`` with arrays as lists, numpy scalars as Python's, and non-finite floats as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
