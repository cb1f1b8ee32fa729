"""Facts about this machine and process: memory (from psutil), rank, versions, hardware and git state.

Needs no torch. Unknown values are None. No paths, user names or addresses are recorded. Without /proc no
process counts as dead, and callers rely on leases. Ranks need no coordinator: each claims units through the
store.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orderlens._version import __version__
from orderlens.errors import DeviceMemoryError

_WORDS = ("out of memory", "can't allocate memory", "alloc_failed", "insufficient memory")
"""Messages of libraries that report missing memory as a plain RuntimeError."""
_TRIM, _MMAP = -1, -3
"""glibc's parameter numbers M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
_KEPT_BYTES, _MAPPED_BYTES = 2**30, 32 * 2**20


def total_memory() -> int | None:
    """Return the bytes of main memory; None if psutil is not installed."""
    found = _virtual_memory()
    return None if found is None else int(found.total)


def free_memory() -> int | None:
    """Return the bytes of main memory that are available, reclaimable page cache included."""
    found = _virtual_memory()
    return None if found is None else int(found.available)


def process_memory() -> int | None:
    """Return the bytes of main memory that this process uses; None if psutil is not installed."""
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` reports that a device or the host ran out of memory."""
    if isinstance(error, DeviceMemoryError | MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True  # the last is torch's, compared by name to avoid importing torch
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep up to 1 GiB of freed memory; return whether it does.

    Every layer frees and allocates activations on the CPU. If they were returned to the system in between,
    each page would cost a page fault. Only glibc has this setting; environment variables of the user take
    precedence.
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
    """Return ``machine-pid-start``, which stays unique when a process id is used again."""
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
    """Return whether ``tag`` is a process of this machine that has ended; False if that is unknown."""
    own = process_tag()
    pieces = str(tag).split("-")
    if own == UNKNOWN or len(pieces) != 3 or pieces[0] != own.split("-")[0] or not pieces[1].isdigit():
        return False
    return process_tag(int(pieces[1])) != tag or _is_zombie(int(pieces[1]))


def _is_zombie(pid: int) -> bool:
    """Return whether a process was killed but its parent has not collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (OSError, IndexError):
        return True


_PACKAGES = ("numpy", "pyarrow", "torch", "transformers", "tokenizers", "safetensors", "duckdb", "scipy")
_GIT_TIMEOUT_S = 5.0


@cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python, this package and the packages that affect numbers."""
    found: dict[str, str | None] = {"python": platform.python_version(), "orderlens": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def hardware() -> dict[str, Any]:
    """Return system, processor, cores, memory and, if torch is loaded, the accelerators."""
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
    """Return torch's GPUs if torch is already imported; importing it here would take seconds."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


@cache
def git_state(folder: Path | None = None) -> dict[str, Any] | None:
    """Return commit and cleanliness of the git checkout of ``folder`` (this package); None outside one."""
    where = Path(__file__).parent if folder is None else folder
    commit = _git(where, "rev-parse", "HEAD")
    if not commit or not _git(
        where, "ls-files", "."
    ):  # an installed package inside another project's checkout
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
    """Return versions, hardware and git state, which can change numbers."""
    return {"versions": versions(), "hardware": hardware(), "git": git_state()}


def provenance() -> dict[str, Any]:
    """Return the environment and the time (UTC)."""
    return {**environment(), "time": datetime.now(UTC).isoformat(timespec="seconds")}


_LAUNCHERS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
"""Environment variables of torchrun (and compatible launchers) and of srun."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of several processes that were started together.

    Attributes:
        index: 0-based number among all processes.
        count: number of processes.
        local: 0-based number among the processes of this machine.
    """

    index: int
    count: int
    local: int

    @property
    def leads(self) -> bool:
        """Whether this is the leading rank, which shows progress, closes runs and writes pages."""
        return self.index == 0


def this_rank(environment: Mapping[str, str] | None = None) -> Rank | None:
    """Return this process's rank; None if it was started alone."""
    found = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        values = [found.get(name, "") for name in names]
        index, count, local = (int(value) if value.isdecimal() else -1 for value in values)
        if 0 <= index < count and count > 1:
            return Rank(index, count, max(local, 0))
    return None
