"""The table of GPUs in the manual is what ``orderlens doctor`` computes; speeds are near measured ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

from orderlens.models.families import dream, llada, llada2, llada_moe, nemotron, sdar
from orderlens.models.fit import GPUS, Network, estimate, has_experts, markdown, own_gpus

PAGE = Path(__file__).parents[2] / "docs" / "running.md"
MODELS = {
    "LLaDA-2.x mini": (llada2.MINI, 32),
    "LLaDA-2.x flash": (llada2.FLASH, 32),
    "SDAR-30B-A3B": (sdar.MOE_30B, 4),
    "LLaDA-MoE-7B-A1B": (llada_moe.MOE_7B, 32),
    "Nemotron-Labs-Diffusion 8B": (nemotron.NEMOTRON_8B, 32),
    "LLaDA-8B": (llada.LLADA_8B, 32),
    "Dream-7B": (dream.DREAM_7B, 32),
}
H200 = next(gpu for gpu in GPUS if gpu.name.startswith("H200"))


def written() -> str:
    rows = [
        (name, estimate(shape, torch.bfloat16, block, float8=float8))
        for name, (shape, block) in MODELS.items()
        for float8 in ((False, True) if has_experts(shape) else (False,))
    ]
    return markdown(rows)


def test_the_table_is_computed() -> None:
    table = written()
    assert table in PAGE.read_text(encoding="utf-8"), f"docs/running.md needs this table:\n{table}"


@pytest.mark.parametrize(("batch", "measured"), [(1, 155), (32, 3119), (128, 6098), (256, 6985)])
def test_estimates_are_near_the_measured_speed_of_mini(batch: int, measured: float) -> None:
    """Tokens per second of benchmarks/RESULTS.md; batch 1 with tokens that choose experts independently."""
    found = batch / Network(llada2.MINI, torch.bfloat16, 32).seconds_per_pass(H200, batch)
    assert found == pytest.approx(measured, rel=0.35)


def test_a_length_that_does_not_fit_has_no_batch() -> None:
    """38 MB are left beside weights and working memory: sequences of 160 tokens fit, of 2,048 (84 MB) not."""
    (fit,) = estimate(
        replace(llada2.MINI, vocab_size=157184 + 90000),
        torch.bfloat16,
        32,
        gpus=[replace(H200, memory_gib=35)],
    )
    assert fit.fits
    assert fit.batch == {160: 5}
    assert markdown([("m", [fit])]).splitlines()[-1].startswith("| m | 33.2 GB, bfloat16 | 0; ")


def test_fp8_is_not_promised_to_be_faster_than_measured() -> None:
    speeds = {
        float8: 32 / Network(llada2.MINI, torch.bfloat16, 32, float8).seconds_per_pass(H200, 32)
        for float8 in (False, True)
    }
    assert speeds[True] == pytest.approx(4266, rel=0.1)
    assert speeds[True] < 1.38 * speeds[False]


@pytest.mark.parametrize(("batch", "milliseconds"), [(1, 5.37), (8, 28.3), (32, 116.6), (64, 229.7)])
def test_estimates_are_near_the_measured_speed_of_llada(batch: int, milliseconds: float) -> None:
    found = 1e3 * Network(llada.LLADA_8B, torch.bfloat16, 32).seconds_per_pass(H200, batch)
    assert found == pytest.approx(milliseconds, rel=0.35)


def test_memory_decides_what_fits() -> None:
    small, *_, large = estimate(llada2.MINI, torch.bfloat16, 32)
    assert (small.fits, small.batch, small.tokens_per_s) == (False, {}, {})
    assert large.fits
    assert large.cache_kib == 40
    free = 179 * 2**30 - 2**30 - llada2.MINI.n_parameters * 2 - 3 * 2**30
    assert large.batch[2048] == free // (2048 * 40 * 1024)


def test_a_known_gpu_of_this_machine_is_estimated_with_its_own_memory() -> None:
    names = ["cpu", "cuda:0 (NVIDIA H200)", "cuda:1 (NVIDIA A100-SXM4-80GB)", "cuda:2 (NVIDIA T4)", "mps"]
    own = own_gpus({"name": name, "memory_gib": 79.9} for name in names)
    assert [(gpu.name, gpu.memory_gib, gpu.bandwidth) for gpu in own] == [
        (names[1], 79, 4.8),
        (names[2], 79, 2.04),
    ]
    found = estimate(llada2.MINI, torch.bfloat16, 32, gpus=own)
    usual = {fit.gpu: fit for fit in estimate(llada2.MINI, torch.bfloat16, 32)}
    assert found[0].tokens_per_s == usual["H200 141 GB"].tokens_per_s
    assert found[0].batch[2048] < usual["H200 141 GB"].batch[2048]


def test_experts_in_8_bits_fit_on_a_small_gpu_and_are_faster() -> None:
    plain, small = (estimate(llada2.MINI, torch.bfloat16, 32, float8=float8) for float8 in (False, True))
    assert small[0].fits
    assert small[0].weights_gb < 17.5
    assert small[3].tokens_per_s[1] > plain[3].tokens_per_s[1]
    limited = replace(llada2.MINI, expert_capacity=48)
    assert estimate(limited, torch.bfloat16, 32)[3].tokens_per_s[1] > plain[3].tokens_per_s[1]
