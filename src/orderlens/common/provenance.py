"""Where and with what something was computed: versions, hardware, git state, time.

Everything is optional information: what cannot be found out is None, nothing here ever raises. No paths, user
names or addresses are recorded.
"""

from __future__ import annotations

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
from orderlens.common.machine import total_memory

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


def collect() -> dict[str, Any]:
    """Return the environment and the time (UTC)."""
    return {**environment(), "time": datetime.now(UTC).isoformat(timespec="seconds")}
