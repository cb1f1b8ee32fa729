"""Ablation of the fast path: one decoding step without one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from llada2_bench.decoding import PROMPT, half_open, prefilled
from llada2_bench.setting import Bench
from orderlens.decode import head_torch
from orderlens.decode.head import position_stats
from orderlens.models.decoder import triton_ops
from orderlens.models.decoder.torch_ops import grouped_product, router_logits
from orderlens.models.decoder.weights import SparseFeedForward
from orderlens.models.engine.graphs import GraphedNetwork
from orderlens.models.engine.session import PagedSession
from orderlens.models.protocol import StateBatch

CANVAS_BLOCKS = 5
"""Blocks of a canvas of 32 + 128 tokens; a step without a prefix cache computes all of them."""


def measure_ablation(bench: Bench, batches: Iterable[int]) -> None:
    """Time the step, and the step without each of its parts."""
    for batch in batches:
        session = prefilled(bench, batch, 2 * PROMPT)
        states = half_open(bench, batch, 2 * PROMPT, masked=False)
        whole = _measure(bench, session, states)
        bench.report(f"step, batch {batch}, as it is", f"{whole * 1e3:.2f} ms", seconds=whole)
        with _torch_experts(bench):
            _compare(bench, batch, "torch's grouped product for the experts", session, states, whole)
        with _plain_launches(bench):
            _compare(bench, batch, "no CUDA graph", session, states, whole)
        _compare(bench, batch, "plain product and reductions as head", session, states, whole, fused=False)
        _compare(bench, batch, "head on all 32 rows", session, _all_rows(states), whole)
        again = _without_cache(bench, batch)
        _compare(bench, batch, "no prefix cache: all 5 blocks computed", *again, whole)


def _compare(
    bench: Bench,
    batch: int,
    what: str,
    session: PagedSession,
    states: StateBatch,
    whole: float,
    fused: bool = True,
) -> None:
    seconds = _measure(bench, session, states, fused)
    bench.report(
        f"step, batch {batch}, {what}",
        f"{seconds * 1e3:.2f} ms",
        f"{seconds / whole:.2f} × as it is",
        seconds=seconds,
    )


def _measure(bench: Bench, session: PagedSession, states: StateBatch, fused: bool = True) -> float:
    def step() -> None:
        rows = session.evaluate(states)
        position_stats(rows if fused else replace(rows, head=head_torch.ChunkedHead()), bench.model.eos_ids)

    for _ in range(4):
        step()
    return bench.wall(step, repeats=9)


def _all_rows(states: StateBatch) -> StateBatch:
    state, offset = np.nonzero(np.ones_like(states.tokens_NW, bool))
    return replace(states, row_state_R=state, row_offset_R=offset)


def _without_cache(bench: Bench, batch: int) -> tuple[PagedSession, StateBatch]:
    """Time recomputing a canvas: every block is one window, and one block's rows are requested."""
    session = prefilled(bench, batch * CANVAS_BLOCKS, 2 * PROMPT)
    states = half_open(bench, batch * CANVAS_BLOCKS, 2 * PROMPT, masked=False)
    wanted = states.row_state_R < batch
    return session, replace(
        states, row_state_R=states.row_state_R[wanted], row_offset_R=states.row_offset_R[wanted]
    )


@contextmanager
def _plain_launches(bench: Bench) -> Iterator[None]:
    engine = bench.model.engine
    graphs, engine._graphs = engine._graphs, None
    try:
        yield
    finally:
        engine._graphs = graphs


@contextmanager
def _torch_experts(bench: Bench) -> Iterator[None]:
    """Replace our expert kernels by torch's grouped product, in separate graphs."""
    engine, kind = bench.model.engine, triton_ops.TritonOps
    graphs, ours = engine._graphs, kind.sparse
    engine._graphs = GraphedNetwork(engine.network, engine.pool) if graphs is not None else None
    kind.sparse = _grouped(kind)  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.sparse, engine._graphs = ours, graphs  # type: ignore[method-assign]


def _grouped(kind: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def sparse(
        self: Any, x_TC: Tensor, h_TC: Tensor, block: SparseFeedForward, next_norm_C: Tensor, *_: object
    ) -> tuple[Tensor, Tensor]:
        logits_TE = router_logits(h_TC, block.router_EC)
        ids_TK, weights_TK, _ = triton_ops.choose_experts(logits_TE, block.bias_E, self.config)
        y_TC = grouped_product(h_TC, ids_TK.long(), weights_TK, block.experts)
        out: tuple[Tensor, Tensor] = kind.add_norm(self, x_TC, y_TC, next_norm_C)
        return out

    return sparse
