from __future__ import annotations

from typing import Any

import pytest
import torch

from orderlens.models.llada2 import memory
from orderlens.models.llada2.config import MINI
from orderlens.models.llada2.model import MAX_BATCH, LLaDA2Model

BF16 = torch.bfloat16


def test_published_sizes() -> None:
    assert memory.weight_bytes(MINI, BF16) / 1e9 == pytest.approx(32.5, abs=0.05)
    assert memory.cache_bytes(MINI, BF16) == 40 * 1024


def test_what_fits() -> None:
    one_gb_of_cache = memory.WORKING_BYTES + 10**9
    assert memory.sequences_that_fit(MINI, BF16, one_gb_of_cache, 160) == 10**9 // (160 * 40960)
    assert memory.sequences_that_fit(MINI, BF16, 0, 160) == 1


@pytest.mark.parametrize(
    ("free", "words"), [(20e9, "do not fit"), (140e9, "fit on cuda:0"), (None, "unknown")]
)
def test_what_to_expect_of_a_gpu(monkeypatch: pytest.MonkeyPatch, free: float | None, words: str) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: None if free is None else int(free))
    line = memory.expectation(torch.device("cuda:0"))
    assert words in line
    assert "32.5 GB" in line
    assert "\n" not in line


def test_what_to_expect_of_a_cpu() -> None:
    assert "memory-mapped" in memory.expectation(torch.device("cpu"))


def test_suggested_batch(model: LLaDA2Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def free(amount: Any) -> None:
        monkeypatch.setattr("orderlens.models.llada2.model.free_bytes", lambda _: amount)

    free(memory.WORKING_BYTES + 10**6)
    few = model.suggested_batch(400)
    assert 1 <= few < model.suggested_batch(40) <= MAX_BATCH
    free(10**13)
    assert model.suggested_batch(400) == MAX_BATCH
    free(None)
    assert model.suggested_batch(400) == 8
