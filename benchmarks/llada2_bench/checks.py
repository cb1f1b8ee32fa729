"""Compares every kernel with plain torch in higher precision, on new random inputs of the real shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llada2_bench.setting import Bench
from orderlens.decode import head_torch
from orderlens.decode.head import draw_stats
from orderlens.kernels.attention import attend
from orderlens.kernels.experts import experts as expert_kernels
from orderlens.kernels.experts.route import choose_experts as route
from orderlens.kernels.experts.tiling import Visits, plan_visits
from orderlens.kernels.gpu import gpu_of
from orderlens.kernels.head import panels as head_kernels
from orderlens.kernels.head.fused_head import reduce_fused
from orderlens.kernels.rowwise import add_rms_norm, prepare_heads
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.network import ExpertNetwork
from orderlens.models.decoder.torch_ops import (
    TorchOps,
    choose_experts,
    grouped_product,
    loop_over_experts,
    with_shared,
)
from orderlens.models.decoder.triton_ops import TritonOps
from orderlens.models.decoder.weights import DecoderLayer, random_weights
from orderlens.models.engine import graphs
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.layer_parts import rms_norm
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.pages import attend as plain_attend
from orderlens.models.engine.transfer import HEADER, Windows, pack
from orderlens.models.protocol import HiddenRows
from orderlens.rules.stats import DrawStats


def check_all(bench: Bench) -> None:
    """Run every check with uninitialised memory filled with NaN, which reveals unwritten outputs."""
    torch.manual_seed(np.random.SeedSequence().entropy % 2**31)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        for check in (
            check_norm,
            check_route,
            check_plan,
            check_experts,
            check_attention,
            check_head,
            check_draws,
            check_network,
        ):
            check(bench)
    finally:
        torch.use_deterministic_algorithms(False)


def expect(bench: Bench, name: str, error: float, limit: float) -> None:
    bench.report(f"check {name}", f"{error:.2e}", f"limit {limit:.0e}", "ok" if error < limit else "FAILED")


def relative(found: Tensor, expected: Tensor) -> float:
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    return float(error) if torch.isfinite(error) else float("inf")


def randn(bench: Bench, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=bench.device) * scale).to(bench.dtype)


def check_norm(bench: Bench) -> None:
    width = bench.config.hidden_size
    x, delta, weight = randn(bench, 300, width), randn(bench, 300, width), randn(bench, width)
    total, normed = add_rms_norm(x, delta, weight, 1e-6)
    exact = x.double() + delta.double()
    scaled = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    expect(bench, "residual + norm", max(relative(total, exact), relative(normed, scaled)), 1e-2)


def check_route(bench: Bench) -> None:
    config = bench.config
    logits = torch.randn(1000, config.n_experts, device=bench.device) * 2
    bias = torch.randn(config.n_experts, device=bench.device) * 0.1
    ids, weights, _ = route(logits, bias, config)
    expected_ids, expected = with_shared(*choose_experts(logits, bias, config), config)
    order, expected_order = ids.long().argsort(1), expected_ids.argsort(1)
    same = (ids.long().gather(1, order) == expected_ids.gather(1, expected_order)).all(dim=1)
    error = (weights.gather(1, order) - expected.gather(1, expected_order))[same].abs().max()
    expect(bench, "routing: rows with other experts", float((~same).float().mean()), 2e-3)
    expect(bench, "routing: weights", float(error), 1e-5)


def check_plan(bench: Bench) -> None:
    n_experts = bench.config.n_experts + bench.config.n_shared
    sizes = ((32, 16), (1000, 64), (4096, 128), (16384, 128), (81920, 128))
    for tokens, block_m in sizes if bench.cuda else sizes[:1]:
        ids, visits = random_visits(bench, tokens)
        plan = plan_visits(ids, visits, n_experts, block_m)
        flat, order = ids.flatten(), plan.order_A.long()
        wrong = int((flat[order] != flat.sort(stable=True).values).sum())
        wrong += int((order != flat.argsort(stable=True)).sum())
        used = plan.tiles_M3[: int(plan.used)]
        wrong += abs(int((used[:, 2] - used[:, 1]).sum()) - ids.numel())
        expect(bench, f"tiles of {tokens} tokens", float(wrong), 0.5)


def random_visits(bench: Bench, tokens: int) -> tuple[Tensor, Visits]:
    """Return experts (int32, with shared ones) of ``tokens`` tokens under random logits, and their visits."""
    config = bench.config
    logits = torch.randn(tokens, config.n_experts, device=bench.device)
    ids, _, visits = route(logits, torch.zeros(config.n_experts, device=bench.device), config)
    return ids, visits


def check_experts(bench: Bench) -> None:
    config = bench.config
    E, F, C = config.n_experts + config.n_shared, config.expert_width, config.hidden_size
    experts = StackedExperts(randn(bench, E, 2 * F, C, scale=0.02), randn(bench, E, C, F, scale=0.02))
    exact = StackedExperts(experts.gate_up_EFC.float(), experts.down_ECF.float())
    for tokens in (32, 200, 1024, 3000) if bench.cuda else (20,):
        x, (ids, visits) = randn(bench, tokens, C), random_visits(bench, tokens)
        weights = torch.rand(ids.shape, device=bench.device)
        expected = loop_over_experts(x.float(), ids, weights, exact)
        zero, ones = torch.zeros_like(x), torch.ones(C, device=bench.device, dtype=bench.dtype)
        for tiling in (tiling.fitting(gpu_of(bench.device)) for _, tiling in expert_kernels.TILINGS):
            y = expert_kernels.expert_rows(x, experts, ids, visits, tiling)
            total, _ = expert_kernels.combine(y, weights, zero, ones, 1e-6)
            expect(
                bench,
                f"experts, {tokens} tokens, tiles of {tiling.rows} + {tiling.rest}",
                relative(total, expected),
                1e-2,
            )
        if bench.cuda:
            found = grouped_product(x, ids.long(), weights, experts)
            expect(bench, f"torch grouped product, {tokens} tokens", relative(found, expected), 1e-2)


def check_attention(bench: Bench) -> None:
    config = replace(bench.config, n_layers=1)
    width = 32
    for starts in ((0, 32, 160, 37), (4096, 16384, 1000, 5)) if bench.cuda else ((0, 37),):
        pool = PagePool(config, bench.device, bench.dtype, 8)
        slots = [pool.open() for _ in starts]
        pool.reserve(list(zip(slots, starts, strict=True)))
        pool.keys[0].copy_(randn(bench, *pool.keys[0].shape))
        pool.values[0].copy_(randn(bench, *pool.values[0].shape))
        pool.flush()
        tokens = np.zeros((len(starts), width), int)
        widths = np.full(len(starts), width)
        widths[0] = 20
        packed = pack(np.array([slot.row for slot in slots]), np.array(starts), widths, tokens)
        windows = Windows(torch.from_numpy(packed).to(bench.device), max(starts))
        fused = randn(bench, len(starts) * width, config.qkv_width)
        layer = DecoderLayer(
            fused, fused, None, *(randn(bench, config.head_width) for _ in range(2)), *([fused] * 3)
        )
        plain = TorchOps(config, bench.device, bench.dtype)
        qk = prepare_heads(fused, layer, plain.tables, windows, pool, 0, config, store=False)
        heads = fused.view(len(starts), width, -1, config.head_width).transpose(1, 2).float()
        q, k, v = torch.tensor_split(heads, (config.n_heads, config.n_heads + config.n_kv_heads), dim=1)
        exact_ops = TorchOps(config, bench.device, torch.float32)
        q = rms_norm(q, layer.q_norm_D.float(), config.norm_eps)
        k = rms_norm(k, layer.k_norm_D.float(), config.norm_eps)
        expected_qk = _rotated(torch.cat((q, k), dim=1), exact_ops, windows)
        found_qk = qk.view(len(starts), width, -1, config.head_width).transpose(1, 2)
        expect(bench, f"heads at {starts}", relative(found_qk, expected_qk), 1e-2)
        q, k = torch.tensor_split(found_qk.float(), (config.n_heads,), dim=1)
        wide = PagePool(config, bench.device, torch.float32, 1)
        wide.keys, wide.values = [pool.keys[0].float()], [pool.values[0].float()]
        wide.table_RX = pool.table_RX
        expected = plain_attend(q, k, v, 0, windows, wide).transpose(1, 2).reshape(len(fused), -1)
        for splits in (1, 4, 16):
            found = attend(qk, fused, windows, pool, 0, config, splits)
            expect(bench, f"attention at {starts}, {splits} splits", relative(found, expected), 1e-2)


def _rotated(x_NHWD: Tensor, ops: TorchOps, windows: Windows) -> Tensor:
    from orderlens.models.engine.layer_parts import rotate

    positions = windows.positions.clamp_max(ops.config.max_positions - 1)
    cos, sin = (table[positions][:, None] for table in ops.tables)
    return rotate(x_NHWD, cos, sin)


def check_head(bench: Bench) -> None:
    vocab, width = bench.config.vocab_size, bench.config.hidden_size
    unembed = randn(bench, vocab, width, scale=0.05)
    for rows in (1, 16, 20, 60, 300):
        hidden = randn(bench, rows, width)
        targets = torch.randint(0, vocab - 40, (rows,), device=bench.device)
        token, columns = reduce_fused(
            hidden, unembed, excluded=(7,), valid_vocab=vocab - 37, eos_ids=(11, 5), targets_R=targets
        )
        logits = hidden.double() @ unembed.double().T
        logits[:, 7] = -torch.inf
        logits[:, vocab - 37 :] = -torch.inf
        log_p = torch.log_softmax(logits, dim=1)
        top = log_p.topk(2, dim=1)
        entropy = -(log_p.exp() * log_p.clamp_min(-1e9)).sum(dim=1)
        eos = torch.logsumexp(log_p[:, [5, 11]], dim=1)
        wanted = log_p.gather(1, targets[:, None])[:, 0]
        expected = torch.stack([torch.logsumexp(logits, 1), *top.values.T, entropy, eos, wanted], dim=1)
        error = (columns.double() - expected).abs()[expected.isfinite()].max()
        tiling = head_kernels.choose_tiling(rows)
        expect(bench, f"head, {rows} rows, tiles of {tiling.block_m}", float(error), 2e-3)
        expect(bench, f"head, {rows} rows: other top token", float((token != top.indices[:, 0]).sum()), 0.5)


def check_draws(bench: Bench) -> None:
    """Compare draws of both heads on the same uniform numbers with exact cumulative probabilities.

    A draw is correct if its number is between the cumulative probabilities of its token, up to rounding of
    the sums. If the heads draw different tokens, both must be correct: the number is then on the edge between
    them. The number of such cases is random and is not checked.
    """
    vocab, width = bench.config.vocab_size, bench.config.hidden_size
    valid, unembed = vocab - 37, randn(bench, vocab, width, scale=0.05)
    for rows, temperature in ((1, 0.7), (20, 1.0), (300, 0.3), (300, 1.5)):
        hidden, uniforms = randn(bench, rows, width), np.random.default_rng().random(rows)
        logits = hidden.double() @ unembed[:valid].double().T
        logits[:, 7] = -torch.inf
        for head in (head_torch.FusedHead(), head_torch.ChunkedHead()):
            kept = HiddenRows(hidden, unembed, (7,), valid, head)
            draws = draw_stats(kept, (), temperature, uniforms)
            name = f"draws, {rows} rows at T = {temperature}, {type(head).__name__}"
            outside, error = draw_errors(logits, temperature, uniforms, draws)
            expect(bench, f"{name}: number outside its token", outside, LOGIT_ERROR / temperature)
            expect(bench, f"{name}: log-probabilities", error, 2e-3)


LOGIT_ERROR = 4e-6
"""Error of float32 sums of 2,048 products; divided by the temperature, it bounds the distance of a number
from its token's interval."""


def draw_errors(
    logits_RV: Tensor, temperature: float, uniforms_R: Any, draws: DrawStats
) -> tuple[float, float]:
    """Return the largest distance of a number from its token's interval, and the largest log p error.

    Args:
        logits_RV: exact logits in float64, −inf for excluded tokens.
        temperature: temperature of the draws.
        uniforms_R: uniform numbers of the draws.
        draws: a head's results.
    """
    token_R1 = torch.from_numpy(draws.token).to(logits_RV.device)[:, None]
    heated_RV = torch.softmax(logits_RV / temperature, dim=1)
    upper_R = heated_RV.cumsum(dim=1).gather(1, token_R1)[:, 0]
    mass_R = heated_RV.gather(1, token_R1)[:, 0]
    goal_R = torch.from_numpy(uniforms_R).to(logits_RV.device)
    outside = torch.maximum(upper_R - mass_R - goal_R, goal_R - upper_R).clamp_min(0).max()
    log_p_R = torch.log_softmax(logits_RV, dim=1).gather(1, token_R1)[:, 0].cpu().numpy()
    tempered_R = mass_R.log().cpu().numpy()
    error = max(abs(draws.logprob - log_p_R).max(), abs(draws.tempered_logprob - tempered_R).max())
    return float(outside), float(error)


def _advanced(bench: Bench, engine: ForwardEngine, clean: Any, states: Any) -> list[Tensor]:
    """Return the hidden states of ``states`` if the same forward caches the blocks before them.

    The slots' pages hold other keys first, so that a window that reads them too early gives a wrong result.
    """
    other = clean.copy()
    other[:, HEADER:] = 7
    runs = []
    for _ in range(6 if bench.cuda else 1):
        engine.store(other)
        (_, hidden_NWC), *_ = engine.hidden(np.concatenate((clean, states)), advance=True)
        runs.append(hidden_NWC[len(clean) :].clone())
    engine.store(clean)
    return runs


def _picked(bench: Bench, engine: ForwardEngine, states: Any) -> list[Tensor]:
    """Return some rows of ``states`` from forwards that compute only these rows, as large forwards do."""
    whole, graphs.WHOLE_TOKENS = graphs.WHOLE_TOKENS, 0
    wanted = np.array([0, 0, 1, 2]), np.array([3, 30, 7, 0])
    try:
        return [next(engine.rows(states, *wanted))[1] for _ in range(6 if bench.cuda else 1)]
    finally:
        graphs.WHOLE_TOKENS = whole


def check_network(bench: Bench) -> None:
    """Check three layers of the real width: kernels against plain torch, and graphs against plain runs."""
    config = replace(bench.config, n_layers=3, vocab_size=4096)
    weights = random_weights(config, bench.device, bench.dtype, seed=5)
    found = {}
    for ops in (TorchOps(config, bench.device, bench.dtype), TritonOps(config, bench.device, bench.dtype)):
        engine = ForwardEngine(ExpertNetwork(weights, config, ops), config)
        slots = [engine.pool.open() for _ in range(3)]
        engine.pool.reserve([(slot, 96) for slot in slots])
        generator = np.random.default_rng(0)
        rows = np.repeat([slot.row for slot in slots], 3)
        clean = pack(rows, np.tile([0, 32, 64], 3), np.full(9, 32), generator.integers(0, 4000, (9, 32)))
        engine.store(clean)
        states = pack(rows[::3], np.array([96, 64, 0]), np.full(3, 32), generator.integers(0, 4000, (3, 32)))
        runs = [next(engine.hidden(states))[1].clone() for _ in range(6 if bench.cuda else 1)]
        found[type(ops).__name__] = runs
        found[f"picked {type(ops).__name__}"] = _picked(bench, engine, states)
        found[f"advance {type(ops).__name__}"] = _advanced(bench, engine, clean, states)
    ours, plain = found["TritonOps"], found["TorchOps"]
    rows_off = ((ours[0].float() - plain[0].float()).norm(dim=-1) / plain[0].float().norm(dim=-1)).flatten()
    expect(bench, "three layers: median row against plain torch", float(rows_off.median()), 2e-2)
    for name in ("advance TorchOps", "advance TritonOps") if bench.cuda else ("advance TorchOps",):
        off = max(relative(run, found[name.removeprefix("advance ")][0]) for run in found[name])
        expect(bench, f"caching and reading in one forward, {name[8:]}", off, 2e-2)
    expect(
        bench,
        "replayed graph against plain run",
        float(max((run - ours[0]).abs().max() for run in ours)),
        1e-6,
    )
    some = found["picked TritonOps"]
    expect(
        bench,
        "replayed graph of some rows against plain run",
        float(max((run - some[0]).abs().max() for run in some)),
        1e-6,
    )
    all_rows = ours[0].flatten(0, 1)[torch.tensor([3, 30, 32 + 7, 64], device=bench.device)]
    expect(bench, "some rows against all", relative(some[0], all_rows), 2e-2)
