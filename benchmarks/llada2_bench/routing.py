"""Routing that distributes tokens evenly over the experts, independent of the weights.

Random weights route the tokens of a text to nearly the same experts; a trained router distributes them. Here
the router's product still runs, but its result is replaced by fixed random numbers, one row per token of a
forward: tokens are routed independently, so that a block of 32 uses about 161 of 256 experts.
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
    """Route tokens independently inside the ``with`` statement; drops recorded graphs before and after."""
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
