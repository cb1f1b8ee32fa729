"""Main memory of this machine (from psutil): how much, when it ran out, what to keep. Needs no torch."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

from orderlens.errors import DeviceMemoryError

_WORDS = ("out of memory", "can't allocate memory", "alloc_failed", "insufficient memory")
"""What libraries say in a plain RuntimeError when a device or the host has no memory left."""
_TRIM, _MMAP = -1, -3
"""glibc's numbers for the free memory that it keeps, and the size from which a block is mapped by itself."""
_KEPT_BYTES, _MAPPED_BYTES = 2**30, 32 * 2**20


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


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep up to 1 GiB that is freed; return whether it does.

    Activations on the CPU are freed and wanted again in every layer. Given back to the system in between,
    each of their pages costs a fault when it is next written. Only glibc has this switch; whoever set its
    environment variables has chosen already.
    """
    chosen = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys()
    if chosen or not sys.platform.startswith("linux"):
        return False
    try:
        switch = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(switch(_MMAP, _MAPPED_BYTES) and switch(_TRIM, _KEPT_BYTES))


def _virtual_memory() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory()
