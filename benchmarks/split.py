"""What LLaDA-2.x-flash would take on several GPUs, from its shape: memory, bytes exchanged, time per step.

    python benchmarks/split.py

Nothing is run. Experts are divided by their groups, everything else is copied; each GPU keeps the sequences
it began with. A row travels to a GPU once, whatever number of its experts lie there, and comes back summed.
The arithmetic runs at the speed that the mini shape reached on one H200 (benchmarks/RESULTS.md, batch 128).
"""

from __future__ import annotations

from math import comb

from capacity import RESULTS, speeds

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.families.llada2 import FLASH, MINI

BATCH, BLOCK, BYTES = 128, 32, 2
NVLINK, MEMORY, PCIE = 450e9, 4.0e12, 50e9
"""Bytes per second of an H200: a direction of its links, what its memory gives in practice, its host."""
LATENCY_S = 30e-6
"""Of one exchange among the GPUs of a node."""


def expert_parameters(config: DecoderConfig) -> int:
    """Return the weights of all routed experts."""
    one = 3 * config.hidden_size * config.expert_width
    return (config.n_layers - config.n_dense_layers) * config.n_experts * one


def active_parameters(config: DecoderConfig) -> float:
    """Return the weights that one row meets, the embedding's table not counted."""
    idle = 1 - config.n_active / config.n_experts
    table = config.vocab_size * config.hidden_size
    return config.n_parameters - table - idle * expert_parameters(config)


def visits(config: DecoderConfig, gpus: int) -> float:
    """Return the GPUs besides its own that a row is sent to, where all experts are equally likely."""
    held, groups, kept = config.n_groups // gpus, config.n_groups, config.n_kept_groups
    drawn = config.n_active
    reached = sum(
        comb(held, k) * comb(groups - held, kept - k) / comb(groups, kept) * (1 - (1 - k / kept) ** drawn)
        for k in range(1, min(held, kept) + 1)
    )
    return (gpus - 1) * reached


def row(gpus: int, peak: float) -> str:
    """Return the table's row for so many GPUs."""
    rows, experts = BATCH * BLOCK, expert_parameters(FLASH) * BYTES
    memory = FLASH.n_parameters * BYTES - experts + experts / gpus
    sent = rows / gpus * visits(FLASH, gpus) * FLASH.hidden_size * BYTES
    sparse = FLASH.n_layers - FLASH.n_dense_layers
    exchange = sparse * 2 * (sent / NVLINK + LATENCY_S)
    compute = max(2 * active_parameters(FLASH) * rows / gpus / peak, memory / MEMORY)
    step = compute + exchange
    return (
        f"| {gpus} | {memory / 1e9:.0f} GB | {visits(FLASH, gpus):.2f} | {sent / 1e6:.1f} MB | "
        f"{1e3 * exchange:.1f} ms | {1e3 * compute:.0f} ms | {1e3 * step:.0f} ms | {BATCH / step:,.0f} |"
    )


def mini_rate() -> float:
    """Return the operations per second of the mini shape on one GPU."""
    steps = speeds(RESULTS.read_text(encoding="utf-8"))["batch 128"] / BATCH
    return 2 * active_parameters(MINI) * BATCH * BLOCK * steps


def main() -> None:
    """Print the shape, a row per number of GPUs, and what keeping the experts in host memory would cost."""
    peak = mini_rate()
    whole, experts = FLASH.n_parameters * BYTES, expert_parameters(FLASH) * BYTES
    print(
        f"{whole / 1e9:.0f} GB, of which experts {experts / 1e9:.0f} GB; "
        f"{active_parameters(FLASH) / 1e9:.1f} B weights per row; "
        f"cache {FLASH.kv_values_per_token * BYTES / 1e3:.0f} kB per token; "
        f"{peak / 1e12:.0f} Tflop/s as on mini"
    )
    print(
        "| GPUs | weights per GPU | GPUs a row visits | sent per GPU, layer and way | exchange "
        "| arithmetic | step | tokens/s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for gpus in (2, 4, 8):
        print(row(gpus, peak))
    print(f"experts in host memory: {experts / PCIE:.1f} s per step that needs all of them")


if __name__ == "__main__":
    main()
