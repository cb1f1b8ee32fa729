"""Main memory of this machine (from psutil), and how libraries say that a memory ran out. Needs no torch."""

from __future__ import annotations

from typing import Any

from orderlens.errors import DeviceMemoryError

_WORDS = ("out of memory", "can't allocate memory", "alloc_failed", "insufficient memory")
"""What libraries say in a plain RuntimeError when a device or the host has no memory left."""


def total_memory() -> int | None:
    """Return the bytes of main memory; None where psutil is missing (a bare copy of the sources)."""
    found = _virtual_memory()
    return None if found is None else int(found.total)


def free_memory() -> int | None:
    """Return the bytes of main memory that can be had, with what the page cache would give back."""
    found = _virtual_memory()
    return None if found is None else int(found.available)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that a device or the host ran out of memory."""
    if isinstance(error, DeviceMemoryError | MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True  # the last is torch's, by name: decoding as such does not need torch
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def _virtual_memory() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory()
