"""This machine: its memory (from psutil), its processes, and the versions, hardware and git state of a run.

Needs no torch. What cannot be found out is None or unknown. No paths, user names or addresses are recorded.
Processes are known where /proc exists; elsewhere no process is known to be dead, and callers use leases.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orderlens._version import __version__
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


_PACKAGES = ("numpy", "pyarrow", "torch", "transformers", "tokenizers", "safetensors", "duckdb", "scipy")
_GIT_TIMEOUT_S = 5.0


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python, of this package and of the packages that shape numbers."""
    found: dict[str, str | None] = {"python": platform.python_version(), "orderlens": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def hardware() -> dict[str, Any]:
    """Return system, processor, cores, memory and the accelerators that torch sees (if it is loaded)."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "accelerators": _accelerators(),
    }


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def _memory_gib() -> float | None:
    found = total_memory()
    return None if found is None else round(found / 2**30, 1)


def _accelerators() -> list[str]:
    """Ask torch only when the caller already uses it: importing it here would cost seconds."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


@cache
def git_state(folder: Path | None = None) -> dict[str, Any] | None:
    """Return commit and cleanliness of the checkout around ``folder`` (this package), None outside one."""
    where = Path(__file__).parent if folder is None else folder
    commit = _git(where, "rev-parse", "HEAD")
    if not commit or not _git(where, "ls-files", "."):  # an installed package inside someone else's checkout
        return None
    changes = _git(where, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  fixed program and arguments
            [program, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def environment() -> dict[str, Any]:
    """Return what can change numbers: versions, hardware and git state (without the time)."""
    return {"versions": versions(), "hardware": hardware(), "git": git_state()}


def provenance() -> dict[str, Any]:
    """Return the environment and the time (UTC)."""
    return {**environment(), "time": datetime.now(UTC).isoformat(timespec="seconds")}
