"""Which device and dtype to use, decided and refused in one place, what is free there, and what fits.

Figures of what fits are estimates for planning (``doctor``, the automatic batch size). Running out of memory
is handled where it happens, by halving.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from orderlens.common.machine import free_memory, total_memory
from orderlens.errors import UserInputError
from orderlens.models.options import DTYPE_NAMES, check_device, check_dtype

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
WORKING_BYTES = 3 * 2**30
"""Activations, recorded graphs and library workspaces of the largest forward: not for the cache."""
MAX_BATCH, UNKNOWN_MEMORY_BATCH = 1024, 8
"""Suggested batches: past the first most networks gain nothing; the second where free memory is unknown."""
STATES_BYTES, STATE_BYTES_PER_TOKEN = 2 * 2**30, 96
"""Under full attention nothing is cached, but scoring lays out a canvas for every token and order at once on
the host: bytes for all of them, and bytes per token of a canvas and token to score (for eight orders)."""
EXAMPLE_LENGTHS = (160, 2048, 16384)
"""Sequence lengths for which ``doctor`` tells a batch size: the paper's C4 texts, a chat, its longest."""


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


class Sized(Protocol):
    """What must be known of a network to say what fits; a family's configuration has these.

    Attributes:
        n_parameters: number of weights.
        kv_values_per_token: numbers cached per token over all layers; 0 where nothing is cached (full
            attention).
        max_positions: longest sequence.
    """

    @property
    def n_parameters(self) -> int: ...

    @property
    def kv_values_per_token(self) -> int: ...

    @property
    def max_positions(self) -> int: ...


def weight_bytes(config: Sized, dtype: torch.dtype) -> int:
    """Return the bytes of all weights."""
    return config.n_parameters * dtype.itemsize


def cache_bytes(config: Sized, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values per token."""
    return config.kv_values_per_token * dtype.itemsize


def suggested_sequences(
    config: Sized, dtype: torch.dtype, free: int | None, tokens_each: int, most: int = MAX_BATCH
) -> int:
    """Return how many sequences to decode together given free memory beside the weights (None: unknown)."""
    if free is None:
        return UNKNOWN_MEMORY_BATCH
    return min(most, sequences_that_fit(config, dtype, free, tokens_each))


def sequences_that_fit(config: Sized, dtype: torch.dtype, free: int, tokens_each: int) -> int:
    """Return how many sequences of ``tokens_each`` tokens fit in ``free`` bytes, at least 1."""
    each = max(1, tokens_each) * cache_bytes(config, dtype)
    if not each:
        return max(1, STATES_BYTES // (STATE_BYTES_PER_TOKEN * max(1, tokens_each) ** 2))
    return max(1, (free - WORKING_BYTES) // each)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What to expect of a model on a device.

    Attributes:
        device: the device's name for torch.
        weights_gb: size of the weights.
        free_gb: free memory of the device, None where unknown.
        fits: whether weights and working memory fit, None where unknown.
        batch: suggested number of sequences for some lengths in tokens; empty where nothing fits.
        line: all of it in one line.
    """

    device: str
    weights_gb: float
    free_gb: float | None
    fits: bool | None
    batch: dict[int, int]
    line: str


def expectation(
    device: torch.device | str, config: Sized, dtype: torch.dtype, name: str, *, mapped: bool = False
) -> Expectation:
    """Say what to expect of a model on ``device``.

    Args:
        device: where it would run.
        config: its shape.
        dtype: dtype of its weights.
        name: what to call it.
        mapped: on the CPU its weights stay in their files, so what is free can hold the cache.
    """
    device = torch.device(device)
    needed, free = weight_bytes(config, dtype), free_bytes(device)
    mapped = mapped and device.type == "cpu"
    fits = None if free is None else free >= needed + (0 if mapped else WORKING_BYTES)
    room = None if free is None else free if mapped else free - needed
    batch = {} if fits is False and not mapped else _batches(config, dtype, room)
    line = f"{name}: {needed / 1e9:.1f} GB of weights {_place(device, free, fits, mapped)}"
    if batch:
        sizes = ", ".join(f"{count} of {tokens:,}" for tokens, count in batch.items())
        line += f"; sequences at once: {sizes} tokens"
    free_gb = None if free is None else free / 1e9
    return Expectation(str(device), needed / 1e9, free_gb, fits, batch, line)


def _batches(config: Sized, dtype: torch.dtype, room: int | None) -> dict[int, int]:
    return {
        tokens: suggested_sequences(config, dtype, room, tokens)
        for tokens in EXAMPLE_LENGTHS
        if tokens <= config.max_positions
    }


def _place(device: torch.device, free: int | None, fits: bool | None, mapped: bool) -> str:
    """Say where the weights will be and what that means for speed."""
    have = "" if free is None else f"{free / 1e9:.1f} GB free"
    if mapped:
        speed = "seconds per token"
        speed += "" if fits is not False else " at best: experts are read from the disk at every step"
        return f"memory-mapped on the CPU ({have or 'free memory unknown'}), {speed}"
    if fits is None:
        return f"on {device} (free memory unknown)"
    if fits:
        return f"fit on {device} ({have})"
    remedy = "free memory or use a machine with more" if device.type == "cpu" else "use --device cpu"
    return f"do not fit on {device} ({have}): {remedy}"
