"""How much fits: bytes of weights and cache against what a device has free.

Figures are estimates for planning (``doctor``, the automatic batch size); running out of memory is handled
where it happens, by halving.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from orderlens.models.llada2.config import MINI, LLaDA2Config

WORKING_BYTES = 3 * 2**30
"""Activations, recorded graphs and library workspaces of the largest forward: not for the cache."""


def weight_bytes(config: LLaDA2Config, dtype: torch.dtype) -> int:
    """Return the bytes of all weights."""
    return config.n_parameters * dtype.itemsize


def cache_bytes(config: LLaDA2Config, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values per token."""
    return config.kv_values_per_token * dtype.itemsize


def free_bytes(device: torch.device) -> int | None:
    """Return what is free on ``device``, cached blocks of torch's allocator included; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    return _free_host_bytes() if device.type == "cpu" else None


def _free_host_bytes() -> int | None:
    """Return the host's free memory; on Linux with what the page cache would give back (mapped weights)."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def sequences_that_fit(config: LLaDA2Config, dtype: torch.dtype, free: int, tokens_each: int) -> int:
    """Return how many sequences of ``tokens_each`` tokens ``free`` bytes can cache, at least 1."""
    each = max(1, tokens_each) * cache_bytes(config, dtype)
    return max(1, (free - WORKING_BYTES) // each)


def expectation(
    device: torch.device, config: LLaDA2Config = MINI, dtype: torch.dtype = torch.bfloat16, name: str = "mini"
) -> str:
    """Return one line on what to expect of LLaDA-2.x on ``device``."""
    needed, free = weight_bytes(config, dtype), free_bytes(device)
    head = f"LLaDA-2.x {name}: {needed / 1e9:.1f} GB of weights"
    if device.type == "cpu":
        return f"{head}, memory-mapped on the CPU; each step reads the experts it needs (seconds per token)"
    if free is None:
        return f"{head} on {device}; free memory unknown"
    if free < needed + WORKING_BYTES:
        return f"{head} do not fit on {device} ({free / 1e9:.1f} GB free); use experts='host' or --device cpu"
    count = sequences_that_fit(config, dtype, free - needed, 160)
    return f"{head} fit on {device} ({free / 1e9:.1f} GB free) beside {count} sequences of 160 tokens"
