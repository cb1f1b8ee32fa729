from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from orderlens.models.engine import device as memory
from orderlens.models.families.llada2 import FLASH, MINI

BF16 = torch.bfloat16


def expect(device: str) -> memory.MemoryEstimate:
    return memory.estimate_memory(device, MINI, BF16, "LLaDA-2.x mini", mapped=True)


def test_published_sizes() -> None:
    assert memory.weight_bytes(MINI, BF16) / 1e9 == pytest.approx(32.5, abs=0.05)
    assert memory.cache_bytes(MINI, BF16) == 40 * 1024


def test_what_fits() -> None:
    one_gb_of_cache = memory.WORKING_BYTES + 10**9
    assert memory.sequences_that_fit(MINI, BF16, one_gb_of_cache, 160) == 10**9 // (160 * 40960)
    assert memory.sequences_that_fit(MINI, BF16, 0, 160) == 1


@pytest.mark.parametrize(
    ("free", "fits", "words"),
    [
        (20e9, False, "do not fit on cuda:0 (20.0 GB free): use --device cpu"),
        (48e9, True, "fit on cuda:0 (48.0 GB free)"),
        (140e9, True, "fit on cuda:0 (140.0 GB free)"),
        (None, None, "on cuda:0 (free memory unknown)"),
    ],
)
def test_what_to_expect_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, free: float | None, fits: bool | None, words: str
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: None if free is None else int(free))
    found = expect("cuda:0")
    assert found.fits is fits
    assert words in found.line
    assert found.line.startswith("LLaDA-2.x mini: 32.5 GB of weights ")
    assert "\n" not in found.line
    if free == 48e9:
        room = int(free) - memory.weight_bytes(MINI, BF16) - memory.WORKING_BYTES
        assert found.batch == {160: 1024, 2048: room // (2048 * 40960), 16384: room // (16384 * 40960)}
        assert (found.batch[160], found.batch[16384]) == (1024, 18)
    if fits is False:
        assert found.batch == {}
    if fits is None:
        assert found.batch == {160: 8, 2048: 8, 16384: 8}


@pytest.mark.parametrize(("free", "words"), [(60e9, "), seconds per token"), (16e9, "read from the disk")])
def test_what_to_expect_of_a_cpu(monkeypatch: pytest.MonkeyPatch, free: float, words: str) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: int(free))
    found = expect("cpu")
    assert "memory-mapped on the CPU" in found.line
    assert words in found.line
    assert found.batch[16384] == min(1024, (int(free) - memory.WORKING_BYTES) // (16384 * 40960))


def test_apple_memory_is_what_the_driver_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 48 * 10**9)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 10**9)
    assert memory.free_bytes(torch.device("mps")) == 47 * 10**9
    found = expect("mps")
    assert found.fits
    assert "fit on mps (47.0 GB free)" in found.line


def test_flash_is_three_times_a_gpu() -> None:
    assert memory.weight_bytes(FLASH, BF16) / 1e9 == pytest.approx(205.8, abs=0.5)


def test_free_memory_of_the_host_is_known() -> None:
    free = memory.free_bytes(torch.device("cpu"))
    assert free is None or free > 2**20


@dataclass(frozen=True)
class UncachedNetwork:
    n_parameters: int = 8 * 10**9
    kv_values_per_token: int = 0
    max_positions: int = 4096


def test_a_model_that_caches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: int(20e9))
    found = memory.estimate_memory("cuda:0", UncachedNetwork(), BF16, "full")
    assert found.batch == {160: 873, 2048: 5}  # canvases grow with the square
    monkeypatch.setattr(memory, "free_bytes", lambda _: int(10e9))
    assert (
        "do not fit on cpu (10.0 GB free): free memory"
        in memory.estimate_memory("cpu", UncachedNetwork(), BF16, "full").line
    )
