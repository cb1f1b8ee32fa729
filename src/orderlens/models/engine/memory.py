"""Memory of a device: what is free, and how to tell that it ran out. Knows nothing of models."""

from __future__ import annotations

import torch

from orderlens.common.machine import free_memory

WORKING_BYTES = 3 * 2**30
"""Activations, recorded graphs and library workspaces of the largest forward: not for the cache."""


def free_bytes(device: torch.device) -> int | None:
    """Return what is free on ``device``, cached blocks of torch's allocator included; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return free_memory() if device.type == "cpu" else None
