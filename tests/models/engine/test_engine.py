from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.errors import DeviceMemoryError
from orderlens.models.decoder.network import ExpertNetwork
from orderlens.models.decoder.weights import random_weights
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.graphs import bucket, padded
from orderlens.models.engine.transfer import Windows, pack
from orderlens.models.families.llada2 import MINI

TINY = replace(
    MINI,
    vocab_size=64,
    hidden_size=32,
    n_layers=2,
    ffn_width=32,
    expert_width=32,
    n_experts=8,
    n_active=2,
    n_groups=2,
    n_kept_groups=1,
    n_heads=2,
    n_kv_heads=1,
    head_width=16,
    rotary=8,
    max_positions=256,
)


class Cramped(ExpertNetwork):
    """A network on a device whose memory holds a limited number of windows."""

    def __init__(self, capacity: int) -> None:
        super().__init__(random_weights(TINY, "cpu", torch.float32, std=0.2), TINY)
        self.capacity = capacity
        self.calls: list[int] = []

    def hidden(self, windows: Windows, pool: Any) -> Any:
        self.calls.append(windows.count)
        if windows.count > self.capacity:
            raise torch.OutOfMemoryError
        return super().hidden(windows, pool)


def run(engine: ForwardEngine, count: int) -> Any:
    slot = engine.pool.open()
    tokens = np.random.default_rng(0).integers(0, 64, (count, 8))
    packed = pack(np.full(count, slot.row), np.zeros(count, int), np.full(count, 8), tokens)
    return torch.cat([hidden.flatten(0, 1) for _, hidden in engine.hidden(packed)])


def test_out_of_memory_halves_and_loses_nothing() -> None:
    roomy, cramped = Cramped(100), Cramped(3)
    expected = run(ForwardEngine(roomy, TINY), 20)
    engine = ForwardEngine(cramped, TINY)
    found = run(engine, 20)
    assert torch.allclose(found, expected, atol=1e-5)
    assert cramped.calls[:4] == [20, 10, 5, 2]
    assert sum(count for count in cramped.calls if count <= 3) == 20
    cramped.calls.clear()
    run(engine, 20)  # the lesson is kept
    assert max(cramped.calls) == 2


def test_not_even_one_window_fits() -> None:
    network = Cramped(0)
    with pytest.raises(DeviceMemoryError, match="no memory left on cpu") as caught:
        run(ForwardEngine(network, TINY), 4)
    assert "\n" not in str(caught.value)


def test_buckets_cover_every_count() -> None:
    for count in range(1, 400):
        size = bucket(count)
        assert count <= size <= max(2 * count, count + 64)
        assert bucket(size) == size


def test_padding_repeats_the_last_window() -> None:
    packed = np.arange(10, dtype=np.int32).reshape(2, 5)
    filled = padded(packed, 4)
    assert filled.tolist() == [*packed.tolist(), packed[1].tolist(), packed[1].tolist()]
    assert padded(packed, 2) is packed


def test_random_weights_are_reproducible_and_of_the_right_shape() -> None:
    first, second = (random_weights(TINY, "cpu", torch.bfloat16, seed=3) for _ in range(2))
    assert torch.equal(
        first.layers[1].feed_forward.experts.down_ECF, second.layers[1].feed_forward.experts.down_ECF
    )
    assert first.layers[1].feed_forward.experts.gate_up_EFC.shape == (9, 64, 32)
    assert first.layers[0].feed_forward.gate_up_FC.shape == (64, 32)
    assert not torch.equal(first.unembed_VC, random_weights(TINY, "cpu", torch.bfloat16, seed=4).unembed_VC)
