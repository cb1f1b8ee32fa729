"""Estimate of LLaDA-2.x-flash under expert parallelism: memory, bytes exchanged, time per step.

    python benchmarks/split.py

Nothing is run. Experts are divided by their groups, all other weights are replicated; each GPU keeps its
sequences. A row is sent to a GPU once, for all of its experts there, and the sum is sent back. The arithmetic
runs at the speed of the mini shape on one H200 (benchmarks/RESULTS.md, batch 128).
"""

from __future__ import annotations

from math import comb

from capacity import RESULTS, speeds

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.families.llada2 import FLASH, MINI

BATCH, BLOCK, BYTES = 128, 32, 2
NVLINK, MEMORY, PCIE = 450e9, 4.0e12, 50e9
"""Bytes per second of an H200: one direction of NVLink, memory in practice, PCIe to the host."""
LATENCY_S = 30e-6
"""Latency of one exchange between the GPUs of a node."""


def expert_parameters(config: DecoderConfig) -> int:
    """Return the weights of all routed experts."""
    one = 3 * config.hidden_size * config.expert_width
    return (config.n_layers - config.n_dense_layers) * config.n_experts * one


def active_parameters(config: DecoderConfig) -> float:
    """Return the number of weights that one row uses, without the embedding table."""
    idle = 1 - config.n_active / config.n_experts
    table = config.vocab_size * config.hidden_size
    return config.n_parameters - table - idle * expert_parameters(config)


def visits(config: DecoderConfig, gpus: int) -> float:
    """Return the mean number of other GPUs that a row is sent to, if all experts are equally likely."""
    groups_per_gpu, groups, n_chosen = config.n_groups // gpus, config.n_groups, config.n_kept_groups
    drawn = config.n_active
    reached = sum(
        comb(groups_per_gpu, k)
        * comb(groups - groups_per_gpu, n_chosen - k)
        / comb(groups, n_chosen)
        * (1 - (1 - k / n_chosen) ** drawn)
        for k in range(1, min(groups_per_gpu, n_chosen) + 1)
    )
    return (gpus - 1) * reached


def row(gpus: int, peak: float) -> str:
    """Return the table's row for ``gpus`` GPUs."""
    rows, experts = BATCH * BLOCK, expert_parameters(FLASH) * BYTES
    memory = FLASH.n_parameters * BYTES - experts + experts / gpus
    sent = rows / gpus * visits(FLASH, gpus) * FLASH.hidden_size * BYTES
    sparse = FLASH.n_layers - FLASH.n_dense_layers
    exchange = sparse * 2 * (sent / NVLINK + LATENCY_S)
    compute = max(2 * active_parameters(FLASH) * rows / gpus / peak, memory / MEMORY)
    step = compute + exchange
    cells = (
        f"{gpus}",
        f"{memory / 1e9:.0f} GB",
        f"{visits(FLASH, gpus):.2f}",
        f"{sent / 1e6:.1f} MB",
        f"{1e3 * exchange:.1f} ms",
        f"{1e3 * compute:.0f} ms",
        f"{1e3 * step:.0f} ms",
        f"{BATCH / step:,.0f}",
    )
    return f"| {' | '.join(cells)} |"


def mini_rate() -> float:
    """Return the operations per second of the mini shape on one GPU."""
    steps = speeds(RESULTS.read_text(encoding="utf-8"))["batch 128"] / BATCH
    return 2 * active_parameters(MINI) * BATCH * BLOCK * steps


def main() -> None:
    """Print the shape, a row per number of GPUs, and the cost of experts in host memory."""
    peak = mini_rate()
    total_bytes, experts = FLASH.n_parameters * BYTES, expert_parameters(FLASH) * BYTES
    print(
        f"{total_bytes / 1e9:.0f} GB, of which experts {experts / 1e9:.0f} GB; "
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
