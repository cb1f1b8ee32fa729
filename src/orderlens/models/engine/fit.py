"""How much fits: bytes of weights and cache against what a device has free.

Figures are estimates for planning (``doctor``, the automatic batch size); running out of memory is handled
where it happens, by halving.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from orderlens.models.engine.device import WORKING_BYTES, free_bytes

MAX_BATCH, UNKNOWN_MEMORY_BATCH = 1024, 8
"""Suggested batches: past the first most networks gain nothing; the second where free memory is unknown."""
STATES_BYTES, STATE_BYTES_PER_TOKEN = 2 * 2**30, 96
"""Under full attention nothing is cached, but scoring lays out a canvas for every token and order at once on
the host: bytes for all of them, and bytes per token of a canvas and token to score (for eight orders)."""
EXAMPLE_LENGTHS = (160, 2048, 16384)
"""Sequence lengths for which ``doctor`` tells a batch size: the paper's C4 texts, a chat, its longest."""


class Sized(Protocol):
    """What must be known of a network to say what fits; a family's configuration has these."""

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        ...

    @property
    def kv_values_per_token(self) -> int:
        """Numbers cached per token over all layers; 0 where nothing is cached (full attention)."""
        ...

    @property
    def max_positions(self) -> int:
        """Longest sequence."""
        ...


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
