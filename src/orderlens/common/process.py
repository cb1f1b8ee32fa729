"""Which process wrote a file, and whether that process is known to be gone.

Works where /proc exists. Elsewhere nothing is ever known to be dead, and callers fall back on leases.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

UNKNOWN = "unknown"


def process_tag(pid: int | None = None) -> str:
    """Return ``machine-pid-start``: names one process even after its number was used again."""
    return _own_tag(os.getpid()) if pid is None else _tag(pid)


@cache
def _own_tag(number: int) -> str:
    return _tag(number)


def _tag(number: int) -> str:
    try:
        started = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    except (OSError, IndexError):
        return UNKNOWN
    machine = hashlib.sha256(f"{boot}:{namespace}".encode()).hexdigest()[:12]
    return f"{machine}-{number}-{started}"


def is_dead(tag: object) -> bool:
    """Say whether ``tag`` is a process of this machine that has ended; False when that cannot be known."""
    own = process_tag()
    pieces = str(tag).split("-")
    if own == UNKNOWN or len(pieces) != 3 or pieces[0] != own.split("-")[0] or not pieces[1].isdigit():
        return False
    return process_tag(int(pieces[1])) != tag or _is_zombie(int(pieces[1]))


def _is_zombie(pid: int) -> bool:
    """A killed process keeps its number until its parent looks; it computes no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (OSError, IndexError):
        return True
