from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.models.decoder.network import make_network
from orderlens.models.decoder.reference import _chosen_experts, hidden_states
from orderlens.models.decoder.torch_ops import choose_experts, router_logits, with_shared
from orderlens.models.decoder.weights import random_weights
from orderlens.models.families.llada2 import MINI

SMALL = replace(MINI, n_experts=8, n_active=3, n_groups=4, n_kept_groups=2, routed_scale=2.0, n_shared=1)


def test_by_hand() -> None:
    """Groups (0,1) (2,3) (4,5) (6,7); sums of sigmoids pick groups 1 and 2 although expert 0 is the best."""
    sigmoid = torch.tensor([[0.9, 0.1, 0.6, 0.7, 0.8, 0.5, 0.4, 0.3]])
    ids, weights = choose_experts(torch.logit(sigmoid), torch.zeros(8), SMALL)
    assert ids.tolist() == [[4, 3, 2]]
    expected = torch.tensor([[0.8, 0.7, 0.6]]) / 2.1 * 2.0
    assert torch.allclose(weights, expected, atol=1e-6)


def test_the_bias_selects_but_does_not_weigh() -> None:
    sigmoid = torch.tensor([[0.9, 0.1, 0.5, 0.7, 0.8, 0.5, 0.4, 0.3]])
    bias = torch.tensor([0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    ids, weights = choose_experts(torch.logit(sigmoid), bias, SMALL)
    assert sorted(ids[0].tolist()) == [0, 1, 4]
    by_expert = dict(zip(ids[0].tolist(), weights[0].tolist(), strict=True))
    assert by_expert[0] / by_expert[1] == pytest.approx(9.0, rel=1e-4)
    assert sum(by_expert.values()) == pytest.approx(2.0, rel=1e-5)


def test_one_active_expert_keeps_its_sigmoid() -> None:
    config = replace(SMALL, n_active=1)
    _, weights = choose_experts(torch.logit(torch.full((1, 8), 0.25)), torch.arange(8.0), config)
    assert weights.item() == pytest.approx(0.5)


def test_of_equal_scores_the_lower_experts_are_chosen() -> None:
    logits, bias = torch.zeros(1, 16), torch.zeros(16)
    groups = replace(SMALL, n_experts=16)
    assert sorted(choose_experts(logits, bias, groups)[0][0].tolist()) == [0, 1, 2]
    block = replace(groups, n_groups=1, n_kept_groups=1, expert_capacity=7)
    valid = torch.ones(1, 1, dtype=torch.bool)
    assert sorted(choose_experts(logits, bias, block, valid)[0][0].tolist()) == [0, 1, 2]


@given(
    seed=st.integers(0, 2**31),
    groups=st.sampled_from([1, 2, 4]),
    kept=st.integers(1, 4),
    active=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_agrees_with_the_readable_choice(seed: int, groups: int, kept: int, active: int) -> None:
    config = replace(MINI, n_experts=16, n_groups=groups, n_kept_groups=min(kept, groups), n_active=active)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 16, generator=generator)
    bias = torch.randn(16, generator=generator) * 0.3
    ids, weights = choose_experts(logits, bias, config)
    selection = (logits.sigmoid() + bias).tolist()
    assert [sorted(row) for row in ids.tolist()] == [
        sorted(_chosen_experts(row, config)) for row in selection
    ]
    if active > 1:
        assert torch.allclose(weights.sum(dim=1), torch.full((6,), 2.5), atol=1e-5)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_softmax_router(normalised: bool) -> None:
    """As in Qwen3-MoE and OLMoE: the best of a softmax over all experts, divided by their sum or not."""
    config = replace(MINI, n_experts=4, n_active=2, n_groups=1, n_kept_groups=1, routed_scale=1.0)
    config = replace(config, router="softmax", normalised=normalised)
    chances = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    ids, weights = choose_experts(chances.log(), torch.zeros(4), config)
    assert ids.tolist() == [[1, 3]]
    expected = torch.tensor([[0.4, 0.3]]) / (0.7 if normalised else 1.0)
    assert torch.allclose(weights, expected, atol=1e-6)
    _, alone = choose_experts(chances.log(), torch.zeros(4), replace(config, n_active=1))
    assert alone.item() == pytest.approx(1.0 if normalised else 0.4)


@pytest.mark.parametrize("router", ["sigmoid", "softmax"])
def test_fast_and_readable_forward_agree(router: str) -> None:
    """A network with experts and full attention, which no published family has yet."""
    config = replace(
        MINI, vocab_size=40, hidden_size=32, n_layers=2, ffn_width=48, n_heads=4, n_kv_heads=2, head_width=8,
        rotary=8, max_positions=64, attention="full", n_experts=8, n_active=3, expert_width=16, n_groups=1,
        n_kept_groups=1, router=router, normalised=router == "sigmoid",
    )  # fmt: skip
    weights = random_weights(config, "cpu", torch.float32, std=0.3)
    tokens = torch.arange(12)
    fast = make_network(weights, config).canvas(tokens[None])[0]
    plain = hidden_states(weights, config, tokens, torch.ones(12, 12, dtype=torch.bool))
    assert torch.allclose(fast, plain, atol=1e-4)


def test_shared_experts_come_last_with_weight_one() -> None:
    config = replace(SMALL, n_shared=2)
    ids, weights = with_shared(torch.tensor([[1, 2, 3]]), torch.tensor([[0.1, 0.2, 0.3]]), config)
    assert ids.tolist() == [[1, 2, 3, 8, 9]]
    assert weights[0, 3:].tolist() == [1.0, 1.0]
    same = with_shared(ids, weights, replace(SMALL, n_shared=0))
    assert same[0] is ids


def test_router_logits_are_float32_even_from_bf16() -> None:
    generator = torch.Generator().manual_seed(0)
    x, router = (torch.randn(rows, 8, generator=generator).bfloat16() for rows in (3, 4))
    logits = router_logits(x, router)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits.double(), x.double() @ router.double().T, atol=1e-5)  # bf16 keeps 1e-2
