"""Which device and dtype to use, decided and refused in one place, and how much memory is free there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from orderlens.common.machine import free_memory, total_memory
from orderlens.errors import UserInputError
from orderlens.models.options import DTYPE_NAMES, check_device, check_dtype

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
WORKING_BYTES = 3 * 2**30
"""Activations, recorded graphs and library workspaces of the largest forward: not for the cache."""


def pick_device(wanted: str | None = None, prefer: Sequence[str] = ("cuda",)) -> torch.device:
    """Return the wanted device, or the best one there is; a missing one is refused by name.

    Args:
        wanted: ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; None or ``auto`` for the best.
        prefer: device types to take before the CPU, best first, when the choice is free.
    """
    if wanted is None or wanted == "auto":
        return _own_gpu(torch.device(next((kind for kind in prefer if _visible(kind)), "cpu")))
    check_device(wanted)  # first: torch keeps the lowest 8 bits of an index, so that its cuda:256 is cuda:0
    device = torch.device(wanted)
    if not _visible(device.type):
        what = "no CUDA GPU is visible to torch" if device.type == "cuda" else "Apple MPS is not available"
        raise UserInputError(f"device '{wanted}': {what}; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserInputError(
            f"device '{wanted}': torch sees {torch.cuda.device_count()} CUDA GPU(s), numbered from 0"
        )
    return _own_gpu(device)


def _own_gpu(device: torch.device) -> torch.device:
    """Return this rank's GPU where torchrun or Slurm started several processes on the machine."""
    place = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or ""
    if device.type != "cuda" or device.index is not None or not place.isdigit() or int(place) == 0:
        return device
    return torch.device("cuda", int(place) % torch.cuda.device_count())


def with_index(device: torch.device) -> torch.device:
    """Return ``cuda`` as the ``cuda:N`` that tensors created there report."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def pick_dtype(
    wanted: str | None, default: torch.dtype, allowed: Sequence[str] = tuple(DTYPES)
) -> torch.dtype:
    """Return the dtype called ``wanted``; None or ``auto`` gives the default."""
    check_dtype(wanted, allowed)
    return default if wanted is None or wanted == "auto" else DTYPES[wanted]


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def visible_devices() -> list[dict[str, Any]]:
    """Return what torch can compute on: ``name`` (torch's own comes first in it) and ``memory_gib``."""
    shared = (total_memory() or 0) / 2**30
    found: list[dict[str, Any]] = [{"name": "cpu", "memory_gib": shared}]
    for index in range(visible_gpus()):
        about = torch.cuda.get_device_properties(index)
        found.append({"name": f"cuda:{index} ({about.name})", "memory_gib": about.total_memory / 2**30})
    if _visible("mps"):
        found.append({"name": "mps", "memory_gib": shared})
    return found


def visible_gpus() -> int:
    """Return how many CUDA GPUs torch sees."""
    return torch.cuda.device_count() if _visible("cuda") else 0


def _visible(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or torch.backends.mps.is_available()


def free_bytes(device: torch.device) -> int | None:
    """Return what is free on ``device``, cached blocks of torch's allocator included; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return free_memory() if device.type == "cpu" else None
