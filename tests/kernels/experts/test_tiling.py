"""Sorting assignments into tiles from the marks that their choice leaves: on a GPU, elsewhere interpreted."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch

from orderlens.models.decoder.torch_ops import combine_weights
from orderlens.models.families.llada2 import MINI
from support import kernel_place

_, DEVICE, _ = kernel_place()
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
SMALL = replace(MINI, n_experts=16, n_active=4)


@pytest.mark.parametrize(
    ("tokens", "segments", "groups", "shared"), [(9, 128, 4, 1), (21, 2, 4, 2), (19, 3, 1, 0), (40, 1, 1, 1)]
)
def test_visits(
    monkeypatch: pytest.MonkeyPatch, tokens: int, segments: int, groups: int, shared: int
) -> None:
    """The choice, the lowest id among equals, with marks and counts; and the plan made from them.

    Words of 4, 16, 8 and 32 tokens, of which the last one is never full; one segment of two words.
    """
    from orderlens.kernels.experts import tiling as module
    from orderlens.kernels.experts.route import choose_experts as route

    monkeypatch.setattr(module, "SEGMENTS", segments)
    config = replace(SMALL, n_groups=groups, n_kept_groups=max(1, groups // 2), n_shared=shared)
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(tokens, 16, generator=generator).abs() * 4).round().to(DEVICE) / 4  # many are equal
    ids, weights, visits = route(logits, torch.zeros(16, device=DEVICE), config)
    expected_ids = lowest_of_the_best(logits, config)
    assert ids[:, :4].tolist() == expected_ids.tolist()
    expected_weights = combine_weights(logits.sigmoid().gather(1, expected_ids), config)
    assert torch.allclose(weights[:, :4], expected_weights, atol=1e-6)
    check_visits(visits, ids)
    wide = replace(visits, counts_SR=visits.counts_SR.int())  # as with 65,536 tokens and more
    for each, block_m in ((visits, 1), (visits, 20), (wide, 20)):
        plan = module.plan_visits(ids, each, 16 + shared, block_m)
        check_plan(plan, ids.cpu(), 16 + shared, block_m)


def lowest_of_the_best(logits: Any, config: Any) -> Any:
    """Return the chosen experts without a bias, the lowest group and the lowest id among equals."""
    grid = logits.sigmoid().view(len(logits), config.n_groups, -1)
    score = grid.topk(2, dim=2).values.sum(dim=2)
    left = score.sort(dim=1, descending=True, stable=True).indices[:, config.n_kept_groups :]
    out = torch.zeros_like(score, dtype=torch.bool).scatter_(1, left, True)
    allowed = grid.masked_fill(out[..., None], -torch.inf).flatten(1)
    return allowed.sort(dim=1, descending=True, stable=True).indices[:, : config.n_active]


def check_visits(visits: Any, ids: Any) -> None:
    """Marks are one bit per visit, counts their sums over segments; both are 0 beyond the last expert."""
    rows = visits.marks_NR.shape[1]
    visited = torch.nn.functional.one_hot(ids.cpu().long(), rows).sum(dim=1)
    bits = (visits.marks_NR.cpu()[:, None, :] >> torch.arange(visits.word)[:, None]) & 1
    assert torch.equal(bits.flatten(0, 1)[: len(ids)].long(), visited)
    assert not bits.flatten(0, 1)[len(ids) :].any()
    held = visits.word * visits.words
    counts = [visited[begin : begin + held].sum(dim=0).tolist() for begin in range(0, len(ids), held)]
    assert visits.counts_SR.tolist() == counts


def check_plan(plan: Any, ids: Any, n_experts: int, block_m: int) -> None:
    """Every assignment occurs once, by expert and in order; tiles are full except an expert's last one."""
    flat, order = ids.flatten(), plan.order_A.cpu().long()
    assert order.tolist() == flat.argsort(stable=True).tolist()
    tiles = plan.tiles_M3[: int(plan.used)].tolist()
    expected = []
    for expert, count in enumerate(flat.bincount(minlength=n_experts).tolist()):
        begin = int((flat < expert).sum())
        edges = [*range(begin, begin + count, block_m), begin + count]
        expected += [[expert, low, high] for low, high in pairwise(edges)]
    assert tiles == expected


@pytest.mark.parametrize(
    ("shape", "n_experts", "block_m"),
    [((13, 3), 12, 1), ((13, 3), 12, 4), ((5, 1), 3, 16), ((600, 2), 5, 48)],
)
def test_plans_cover_every_assignment_once(shape: tuple[int, int], n_experts: int, block_m: int) -> None:
    from orderlens.kernels.experts.tiling import Visits, plan_visits

    chance = torch.rand(shape[0], n_experts, generator=torch.Generator().manual_seed(5))
    chance[:, 1], chance[:, -1] = 0, chance[:, -1] + 0.5  # an idle expert, and a busy one
    ids = chance.topk(shape[1]).indices.int()
    visits = Visits.of(ids.to(DEVICE), n_experts)
    check_visits(visits, ids)
    check_plan(plan_visits(ids.to(DEVICE), visits, n_experts, block_m), ids, n_experts, block_m)


@pytest.mark.parametrize(("tokens", "dtype"), [(65_535, torch.int16), (65_536, torch.int32)])
def test_counts_of_many_tokens(tokens: int, dtype: torch.dtype) -> None:
    """Counts of two experts share a word as long as 16 bits hold their sums.

    All tokens visit both; marks are there for the first word of each of two segments, which is enough to see
    where places and tiles begin (the interpreter would take half a minute for all of them).
    """
    from orderlens.kernels.experts.tiling import Visits, plan_visits

    assert Visits.empty(tokens, 3, torch.device("meta")).counts_SR.dtype == dtype
    ids = torch.tensor([[1, 0]], dtype=torch.int32, device=DEVICE).repeat(tokens, 1)
    marks, counts = (torch.zeros(2, 16, dtype=kind, device=DEVICE) for kind in (torch.int32, torch.int64))
    marks[:, :2] = -1
    counts[:, :2] = torch.tensor([40_000, tokens - 40_000], device=DEVICE)[:, None]
    plan = plan_visits(ids, Visits(marks, counts.to(dtype), 32, 1), 3, 60_000)
    edges = [0, 60_000, tokens, tokens + 60_000, 2 * tokens]
    assert plan.tiles_M3[: int(plan.used)].tolist() == [[e // 2, *edges[e : e + 2]] for e in range(4)]
    for expert in range(2):
        for segment in range(2):
            begin = expert * tokens + segment * 40_000
            expected = [2 * token + 1 - expert for token in range(32 * segment, 32 * segment + 32)]
            assert plan.order_A[begin : begin + 32].tolist() == expected


def test_there_are_never_more_tiles_than_planned_for() -> None:
    from orderlens.kernels.experts.tiling import Visits, most_tiles, plan_visits

    spread = torch.arange(12, dtype=torch.int32, device=DEVICE)[:, None]  # one each: a tile per expert
    plan = plan_visits(spread, Visits.of(spread, 12), 12, 16)
    assert int(plan.used) == 12 <= most_tiles(12, 12, 16)
    assert most_tiles(3, 12, 16) == 3
