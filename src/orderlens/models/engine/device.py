"""Chooses and checks device and dtype; reports free memory, and estimates what fits in it.

The estimates serve planning (``doctor``, the automatic batch size). An out-of-memory error is handled where
it occurs, by halving the batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from orderlens.common.machine import free_memory, total_memory
from orderlens.errors import UserInputError
from orderlens.models.protocol import DTYPE_NAMES, check_device, check_dtype

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
WORKING_BYTES = 3 * 2**30
"""Memory for activations, recorded graphs and library workspaces of the largest forward."""
MAX_BATCH, UNKNOWN_MEMORY_BATCH = 1024, 8
"""Largest suggested batch (most networks gain nothing from more), and the batch if free memory is unknown."""
STATES_BYTES, STATE_BYTES_PER_TOKEN = 2 * 2**30, 96
"""Full attention caches nothing, but scoring holds a canvas for every token and order on the host: the bytes
for all canvases, and the bytes per canvas token and scored token (for eight orders)."""
EXAMPLE_LENGTHS = (160, 2048, 16384)
"""Sequence lengths (tokens) for which ``doctor`` prints a batch size: the paper's C4 texts, chat, longest."""


def pick_device(wanted: str | None = None, prefer: Sequence[str] = ("cuda",)) -> torch.device:
    """Return the wanted device, or the best available one; refuse a device that is missing.

    Args:
        wanted: ``cpu``, ``cuda``, ``cuda:N`` or ``mps``; None or ``auto`` for the best.
        prefer: device types preferred to the CPU, best first, for None or ``auto``.
    """
    if wanted is None or wanted == "auto":
        return _gpu_of_this_rank(torch.device(next((kind for kind in prefer if _visible(kind)), "cpu")))
    check_device(wanted)  # before torch, which keeps only 8 bits of an index: its cuda:256 is cuda:0
    device = torch.device(wanted)
    if not _visible(device.type):
        what = "no CUDA GPU is visible to torch" if device.type == "cuda" else "Apple MPS is not available"
        raise UserInputError(f"device '{wanted}': {what}; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserInputError(
            f"device '{wanted}': torch sees {torch.cuda.device_count()} CUDA GPU(s), numbered from 0; "
            "choose one of them or --device auto"
        )
    return _gpu_of_this_rank(device)


def _gpu_of_this_rank(device: torch.device) -> torch.device:
    """Return this rank's GPU if torchrun or Slurm started several processes on the machine."""
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
    """Return torch's devices, each with ``name`` (begins with torch's own name) and ``memory_gib``."""
    shared = (total_memory() or 0) / 2**30
    found: list[dict[str, Any]] = [{"name": "cpu", "memory_gib": shared}]
    for index in range(visible_gpus()):
        about = torch.cuda.get_device_properties(index)
        found.append({"name": f"cuda:{index} ({about.name})", "memory_gib": about.total_memory / 2**30})
    if _visible("mps"):
        found.append({"name": "mps", "memory_gib": shared})
    return found


def visible_gpus() -> int:
    """Return the number of CUDA GPUs that torch sees."""
    return torch.cuda.device_count() if _visible("cuda") else 0


def _visible(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or torch.backends.mps.is_available()


def free_bytes(device: torch.device) -> int | None:
    """Return the free bytes on ``device``, including cached blocks of torch's allocator; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return free_memory() if device.type == "cpu" else None


class Sized(Protocol):
    """The sizes from which memory is estimated; a family's configuration has these.

    Attributes:
        n_parameters: number of weights.
        kv_values_per_token: numbers cached per token over all layers; 0 if nothing is cached (full
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
    config: Sized, dtype: torch.dtype, free: int | None, tokens_per_sequence: int, most: int = MAX_BATCH
) -> int:
    """Return the suggested batch size for free memory in bytes after the weights (None: unknown)."""
    if free is None:
        return UNKNOWN_MEMORY_BATCH
    return min(most, sequences_that_fit(config, dtype, free, tokens_per_sequence))


def sequences_that_fit(config: Sized, dtype: torch.dtype, free: int, tokens_per_sequence: int) -> int:
    """Return the number of sequences of this length that fit in ``free`` bytes, at least 1."""
    bytes_per_sequence = max(1, tokens_per_sequence) * cache_bytes(config, dtype)
    if not bytes_per_sequence:
        return max(1, STATES_BYTES // (STATE_BYTES_PER_TOKEN * max(1, tokens_per_sequence) ** 2))
    return max(1, (free - WORKING_BYTES) // bytes_per_sequence)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Whether a model fits on a device, and with which batch size.

    Attributes:
        device: torch's name of the device.
        weights_gb: size of the weights in GB.
        free_gb: free memory of the device in GB, None if unknown.
        fits: whether weights and working memory fit, None if unknown.
        batch: sequence length in tokens → suggested number of sequences; empty if nothing fits.
        line: whether the model fits, as one line of text.
    """

    device: str
    weights_gb: float
    free_gb: float | None
    fits: bool | None
    batch: dict[int, int]
    line: str


def estimate_memory(
    device: torch.device | str,
    config: Sized,
    dtype: torch.dtype,
    name: str,
    *,
    mapped: bool = False,
    needed: int | None = None,
) -> MemoryEstimate:
    """Estimate whether a model fits on ``device``.

    Args:
        device: the device.
        config: the model's shape.
        dtype: dtype of its weights.
        name: the model's name in the printed line.
        mapped: on the CPU its weights stay in their files, so all free memory can hold the cache.
        needed: bytes of its weights; None if all have ``dtype``.
    """
    device = torch.device(device)
    needed, free = weight_bytes(config, dtype) if needed is None else needed, free_bytes(device)
    mapped = mapped and device.type == "cpu"
    fits = None if free is None else free >= needed + (0 if mapped else WORKING_BYTES)
    room = None if free is None else free if mapped else free - needed
    batch = {} if fits is False and not mapped else _batches(config, dtype, room)
    line = f"{name}: {needed / 1e9:.1f} GB of weights {_place(device, free, fits, mapped)}"
    free_gb = None if free is None else free / 1e9
    return MemoryEstimate(str(device), needed / 1e9, free_gb, fits, batch, line)


def _batches(config: Sized, dtype: torch.dtype, room: int | None) -> dict[int, int]:
    return {
        tokens: suggested_sequences(config, dtype, room, tokens)
        for tokens in EXAMPLE_LENGTHS
        if tokens <= config.max_positions
    }


def _place(device: torch.device, free: int | None, fits: bool | None, mapped: bool) -> str:
    """Return a phrase about where the weights go and what that means for speed."""
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
