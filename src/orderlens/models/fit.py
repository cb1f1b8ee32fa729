"""Estimates on which GPUs a model fits, with which batch and speed, from its shape alone.

Memory is counted: weights, keys and values, working memory. Speed is estimated: one forward reads its weights
once and multiplies its tokens, at fractions of the GPU's bandwidth and peak that were fitted to measurements
on one H200 (``benchmarks/RESULTS.md``). Other GPUs are scaled by their data sheets and were not measured.
Does not depend on a device: nothing is computed on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.loader import ScaleBlock, weight_bytes
from orderlens.models.decoder.network import shape_supported
from orderlens.models.engine.device import EXAMPLE_LENGTHS, WORKING_BYTES, Sized, sequences_that_fit

BANDWIDTH_SHARE, PEAK_SHARE = 0.70, 0.55
"""Shares of a GPU's bandwidth and peak that a forward reaches: LLaDA-2.x mini and LLaDA-8B on one H200."""
FLOAT8_SHARE, HOPPER_FLOAT8_SHARE = 0.42, 0.48
"""The same with experts in 8 bits, widened and on float8 units: LLaDA-2.x mini, batch 32 on one H200."""
LAYER_SECONDS = 45e-6
"""Least time of a layer, however small: `smol`'s shape on one H200 (30 layers, 730 tokens/s at batch 1)."""
CONTEXT_BYTES = 2**30
"""Memory that driver and libraries take on a GPU."""
BATCHES = (1, 32)
"""Batches for which a speed is estimated."""
TYPICAL_LENGTH = EXAMPLE_LENGTHS[0]
"""Tokens of a sequence when its speed is estimated: the paper's texts."""


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A GPU by its data sheet.

    Attributes:
        name: its name.
        memory_gib: its memory in GiB.
        bandwidth: in TB/s.
        peak: dense bf16 peak in TFLOP/s.
        float8_share: share of the bandwidth that is reached with experts in 8 bits.
    """

    name: str
    memory_gib: int
    bandwidth: float
    peak: float
    float8_share: float = FLOAT8_SHARE


GPUS = (
    GpuCard("RTX 4090 24 GB", 24, 1.01, 165),
    GpuCard("A100 80 GB", 80, 2.04, 312),
    GpuCard("H100 80 GB", 80, 3.35, 989, HOPPER_FLOAT8_SHARE),
    GpuCard("H200 141 GB", 140, 4.8, 989, HOPPER_FLOAT8_SHARE),
    GpuCard("B200 180 GB", 179, 8.0, 2250),
)


def own_gpus(devices: Iterable[Mapping[str, Any]]) -> list[GpuCard]:
    """Return this machine's GPUs with the data sheets of ``GPUS``; others are left out.

    Args:
        devices: ``name``, e.g. ``cuda:0 (NVIDIA H200)``, and ``memory_gib`` of each device.
    """
    return [
        replace(card, name=device["name"], memory_gib=int(device["memory_gib"]))
        for device in devices
        for card in GPUS
        if device["name"].startswith("cuda") and card.name.rsplit(" ", 2)[0] in device["name"]
    ]


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """What to expect of a model on a GPU.

    Attributes:
        gpu: name of the GPU.
        weights: format of the weights.
        weights_gb: size of the weights in GB.
        cache_kib: keys and values of a token in KiB; 0 under full attention.
        fits: whether weights and working memory fit.
        batch: sequence length in tokens → largest number of sequences; only lengths of which one fits.
        tokens_per_s: batch → estimated tokens per second at one token per pass, for sequences of 160 tokens;
            empty for 8-bit experts without our kernels, which are widened one at a time.
    """

    gpu: str
    weights: str
    weights_gb: float
    cache_kib: float
    fits: bool
    batch: dict[int, int]
    tokens_per_s: dict[int, float]


def estimate(
    shape: Sized,
    dtype: torch.dtype,
    block: int,
    *,
    float8: bool = False,
    scales: ScaleBlock = None,
    gpus: Iterable[GpuCard] = GPUS,
) -> list[MemoryFit]:
    """Return what to expect on each GPU.

    Args:
        shape: the model's shape.
        dtype: dtype of its weights and activations.
        block: tokens per block.
        float8: experts have 8 bits.
        scales: rows and columns per scale of stored experts with 8 bits; None for one scale per row.
        gpus: the GPUs.
    """
    return [_fit(Network(shape, dtype, block, float8, scales), gpu) for gpu in gpus]


def has_experts(shape: Sized) -> TypeGuard[DecoderConfig]:
    """Return whether the network has experts, which can have 8 bits."""
    return isinstance(shape, DecoderConfig) and shape.n_sparse_layers > 0


@dataclass(frozen=True, slots=True)
class Network:
    """A shape with the precision of its weights."""

    shape: Sized
    dtype: torch.dtype
    block: int
    float8: bool = False
    scales: ScaleBlock = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        if has_experts(self.shape):
            return weight_bytes(self.shape, self.dtype, self.float8, self.scales)
        return self.shape.n_parameters * self.dtype.itemsize

    def seconds_per_pass(self, gpu: GpuCard, batch: int) -> float:
        """Return the estimated seconds of one forward in which each sequence reveals one token."""
        tokens = batch * (self.block if self.shape.kv_values_per_token else TYPICAL_LENGTH)
        cached = batch * TYPICAL_LENGTH * self.shape.kv_values_per_token * self.dtype.itemsize
        multiplied = 2.0 * tokens * (self.shape.n_parameters - self._unused(1))
        share = gpu.float8_share if self.float8 else BANDWIDTH_SHARE
        reading = (self._bytes_read(tokens) + cached) / (share * gpu.bandwidth * 1e12)
        least = LAYER_SECONDS * int(getattr(self.shape, "n_layers", 1))
        return max(reading, multiplied / (PEAK_SHARE * gpu.peak * 1e12), least)

    def _bytes_read(self, tokens: int) -> float:
        """Return the bytes of the weights that a forward of this number of tokens reads."""
        return self.weight_bytes - self._unused(tokens) * (1 if self.float8 else self.dtype.itemsize)

    def _unused(self, tokens: int) -> float:
        """Return the number of weights that no token uses, if tokens choose experts independently."""
        if not has_experts(self.shape):
            return 0.0
        shape, blocks = self.shape, max(1, tokens // self.block)
        chosen = shape.n_experts * (1 - (1 - shape.n_active / shape.n_experts) ** tokens)
        used = min(chosen, (shape.expert_capacity or shape.n_experts) * blocks)
        return shape.n_sparse_layers * (shape.n_experts - used) * 3 * shape.hidden_size * shape.expert_width


def _fit(network: Network, gpu: GpuCard) -> MemoryFit:
    shape, dtype = network.shape, network.dtype
    needed, cache = network.weight_bytes, shape.kv_values_per_token * dtype.itemsize
    free = gpu.memory_gib * 2**30 - CONTEXT_BYTES - needed
    fits = free >= WORKING_BYTES
    longest = min(shape.max_positions, (free - WORKING_BYTES) // cache if cache else shape.max_positions)
    lengths = [length for length in EXAMPLE_LENGTHS if length <= longest] if fits else []
    batch = {length: sequences_that_fit(shape, dtype, free, length) for length in lengths}
    sizes = [size for size in BATCHES if size <= batch.get(TYPICAL_LENGTH, 0)]
    is_known = not network.float8 or (has_experts(shape) and shape_supported(shape))
    speeds = {size: size / network.seconds_per_pass(gpu, size) for size in sizes if is_known}
    name = "fp8" if network.float8 else str(dtype).removeprefix("torch.")
    return MemoryFit(gpu.name, name, needed / 1e9, cache / 1024, fits, batch, speeds)


def markdown(models: Sequence[tuple[str, Sequence[MemoryFit]]]) -> str:
    """Return a table of several models: largest batch of 2,048 tokens, tokens/s at batch 1 and 32."""
    names = [gpu.name for gpu in GPUS]
    lines = [f"| model | weights | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for name, fits in models:
        size = f"{fits[0].weights_gb:.1f} GB, {fits[0].weights}"
        lines.append(f"| {name} | {size} | {' | '.join(map(_cell, fits))} |")
    return "\n".join(lines)


def _cell(fit: MemoryFit) -> str:
    if not fit.fits:
        return "–"
    speeds = " / ".join(f"{speed:,.0f}" for speed in fit.tokens_per_s.values())
    return f"{fit.batch.get(EXAMPLE_LENGTHS[1], 0):,}; {speeds or '–'}"
