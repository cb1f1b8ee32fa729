"""Routing that spreads tokens evenly over the experts, whatever the weights say.

Random weights send the tokens of a text to much the same experts; a trained router spreads them. Here the
router's product runs as ever and its result is replaced by fixed random numbers, one row per token of a
forward: every token chooses independently, so that a block of 32 touches about 161 of 256 experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from llada2_bench.setting import Bench
from orderlens.models.decoder import triton_ops

MOST_TOKENS = 50000


@contextmanager
def even_routing(bench: Bench) -> Iterator[None]:
    """Route independently inside; graphs recorded before, and those from inside afterwards, are dropped."""
    config, engine = bench.config, bench.model.engine
    layers = config.n_layers - config.n_dense_layers
    generator = torch.Generator(device=bench.device).manual_seed(11)
    noise = torch.randn(MOST_TOKENS, config.n_experts, device=bench.device, generator=generator)
    calls, original = count(), triton_ops.router_logits

    def spread(x_TC: Tensor, router_EC: Tensor) -> Tensor:
        original(x_TC, router_EC)
        begin = next(calls) % layers * 149  # other numbers in every layer
        return noise[begin : begin + len(x_TC)]

    engine.release()
    triton_ops.router_logits = spread
    try:
        yield
    finally:
        triton_ops.router_logits = original
        engine.release()
