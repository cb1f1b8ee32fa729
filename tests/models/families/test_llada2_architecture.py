"""Fast path and reference agree; and each part of the architecture is missed when it is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plain_llada2 as reference
import pytest
import torch

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.decoder.torch_ops import rotary_tables_of
from orderlens.models.engine.layer_parts import rotate
from orderlens.models.engine.model import block_causal
from orderlens.models.families.llada2 import load_llada2, parse_config
from orderlens.models.files.configfile import read_json
from orderlens.models.protocol import StateBatch

TOLERANCE = 1e-4
VISIBLE = 0.02
"""A part that is left out must move some log-probability by at least this much."""
LENGTH, BLOCK, OPEN = 96, 32, 9


@pytest.fixture(scope="module")
def tokens() -> Any:
    generator = np.random.default_rng(5)
    tokens = generator.integers(0, 97, LENGTH)
    tokens[-OPEN:] = 99
    return tokens


@pytest.fixture(scope="module")
def parts(checkpoint: tuple[Path, dict[str, Any]]) -> tuple[dict[str, Any], DecoderConfig]:
    folder, tensors = checkpoint
    return tensors, parse_config(read_json(folder / "config.json"))


@pytest.fixture(scope="module")
def fast(model: DecoderModel, tokens: Any) -> Any:
    return fast_log_probs(model, tokens)


def fast_log_probs(model: DecoderModel, tokens: Any) -> Any:
    """Log-probabilities of the masked rows of the last block, through the cached session."""
    session = model.open_session()
    start = len(tokens) - BLOCK
    session.prefill([tokens[:start]], [0])
    offsets = np.flatnonzero(tokens[start:] == model.mask_id)
    rows = session.evaluate(
        StateBatch(
            np.array([0]), np.array([start]), tokens[None, start:], np.zeros(len(offsets), int), offsets
        )
    )
    return normalised(rows.hidden_RD.float() @ rows.unembed_VD.float().T)


def normalised(logits: Any) -> Any:
    logits = logits.double().clone()
    logits[:, 99] = -torch.inf
    logits[:, 103:] = -torch.inf
    return torch.log_softmax(logits, dim=1)[:, [i for i in range(103) if i != 99]]


def slow(tensors: dict[str, Any], config: DecoderConfig, tokens: Any, visible: Any = None) -> Any:
    if visible is None:
        visible = block_causal(len(tokens), BLOCK, 0)
    hidden = reference.hidden_states(tensors, config, torch.from_numpy(tokens), visible)
    return normalised(hidden[-OPEN:] @ tensors["lm_head.weight"].float().T)


def gap(a: Any, b: Any) -> float:
    return float((a - b).abs().max())


def test_fast_path_agrees_with_the_reference(fast: Any, parts: Any, tokens: Any) -> None:
    assert gap(fast, slow(*parts, tokens)) < TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"num_shared_experts": 2, "num_experts_per_tok": 1},
        {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1},
        {"first_k_dense_replace": 3},
        {"num_key_value_heads": 4, "partial_rotary_factor": 1.0},
        {"num_hidden_layers": 4, "num_attention_heads": 8, "moe_intermediate_size": 16},
    ],
    ids=[
        "two shared, one active",
        "no dense layer, one group",
        "all dense",
        "no sharing of keys",
        "flash-like",
    ],
)
def test_other_shapes_agree_too(
    make_checkpoint: Callable[..., Any], tokens: Any, changes: dict[str, Any]
) -> None:
    folder, tensors = make_checkpoint(seed=7, **changes)
    model = load_llada2(folder, device="cpu")
    assert gap(fast_log_probs(model, tokens), slow(tensors, model.config, tokens)) < TOLERANCE


def test_log_probs_is_the_reference(model: DecoderModel, parts: Any, tokens: Any) -> None:
    log_p = model.log_probs(tokens.tolist())
    assert log_p.shape == (LENGTH, 112)
    assert np.isneginf(log_p[:, 99]).all()
    assert np.isneginf(log_p[:, 103:]).all()
    assert np.allclose(np.exp(log_p).sum(axis=1), 1)
    mine = torch.from_numpy(log_p[-OPEN:])[:, [i for i in range(103) if i != 99]]
    assert gap(mine, slow(*parts, tokens)) < 1e-5  # some products have other shapes


LEFT_OUT: dict[str, Callable[[dict[str, Any], DecoderConfig], tuple[dict[str, Any], DecoderConfig]]] = {
    "group limit": lambda t, c: (t, replace(c, n_groups=1, n_kept_groups=1)),
    "expert bias": lambda t, c: ({n: x * 0 if n.endswith("expert_bias") else x for n, x in t.items()}, c),
    "routed scale": lambda t, c: (t, replace(c, routed_scale=1.0)),
    "QK-norm": lambda t, c: (t, replace(c, qk_norm=False)),
    "query scale of QK-norm": lambda t, c: (
        {n: torch.ones_like(x) if n.endswith("query_layernorm.weight") else x for n, x in t.items()},
        c,
    ),
    "partial rotation": lambda t, c: (t, replace(c, rotary=c.head_width)),
    "rope base": lambda t, c: (t, replace(c, rope_theta=10000.0)),
    "shared expert": lambda t, c: (t, replace(c, n_shared=0)),
    "norm epsilon": lambda t, c: (t, replace(c, norm_eps=0.3)),
}


@pytest.mark.parametrize("part", LEFT_OUT)
def test_leaving_a_part_out_shows(part: str, fast: Any, parts: Any, tokens: Any) -> None:
    assert gap(fast, slow(*LEFT_OUT[part](*parts), tokens)) > VISIBLE


def test_the_bias_must_not_enter_the_combine_weights(
    fast: Any, parts: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def biased(layer: Any, x_LC: Any) -> Any:
        scores = torch.sigmoid(x_LC @ layer.weight("mlp.gate.weight").T) + layer.weight(
            "mlp.gate.expert_bias"
        )
        weights = torch.zeros_like(scores)
        for position, row in enumerate(scores.tolist()):
            chosen = reference._chosen_experts(row, layer.config)
            weights[position, chosen] = scores[position, chosen] / scores[position, chosen].sum()
        return weights * layer.config.routed_scale

    monkeypatch.setattr(reference._Layer, "routing", biased)
    assert gap(fast, slow(*parts, tokens)) > VISIBLE


def test_the_combine_weights_must_be_normalised(
    fast: Any, parts: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raw(layer: Any, x_LC: Any) -> Any:
        sigmoid = torch.sigmoid(x_LC @ layer.weight("mlp.gate.weight").T)
        weights = torch.zeros_like(sigmoid)
        for position, row in enumerate((sigmoid + layer.weight("mlp.gate.expert_bias")).tolist()):
            chosen = reference._chosen_experts(row, layer.config)
            weights[position, chosen] = sigmoid[position, chosen]
        return weights * layer.config.routed_scale

    monkeypatch.setattr(reference._Layer, "routing", raw)
    assert gap(fast, slow(*parts, tokens)) > VISIBLE


def test_rotation_must_come_after_the_norm(
    fast: Any, parts: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotating first and scaling afterwards differs, because the scales differ between paired dimensions."""
    original = reference._Layer.norm
    config = parts[1]

    def turned_first(layer: Any, x: Any, name: str) -> Any:
        is_head = name.startswith("attention.")
        return original(layer, reference_rotate(x, config) if is_head else x, name)

    reference_rotate = reference.rotate
    monkeypatch.setattr(reference._Layer, "norm", turned_first)
    monkeypatch.setattr(reference, "rotate", lambda x, _: x)
    assert gap(fast, slow(*parts, tokens)) > VISIBLE


def test_rotation_pairs_halves_and_not_neighbours(
    fast: Any, parts: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, width = reference.rotate, parts[1].rotary_width
    index = torch.arange(width).view(2, -1).T.flatten()
    inverse = index.argsort()

    def interleaved(x: Any, config: DecoderConfig) -> Any:
        head = torch.cat((x[..., :width][..., inverse], x[..., width:]), dim=-1)
        turned = original(head, config)
        return torch.cat((turned[..., :width][..., index], turned[..., width:]), dim=-1)

    monkeypatch.setattr(reference, "rotate", interleaved)
    assert gap(fast, slow(*parts, tokens)) > VISIBLE


@pytest.mark.parametrize(
    "visible",
    [
        torch.ones(LENGTH, LENGTH, dtype=torch.bool),
        torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
        block_causal(LENGTH, BLOCK, 0) | (torch.arange(LENGTH) < 64)[None, :],
    ],
    ids=["full", "causal", "prompt blocks see each other"],
)
def test_prompt_blocks_are_block_causal_too(fast: Any, parts: Any, tokens: Any, visible: Any) -> None:
    assert gap(fast, slow(*parts, tokens, visible)) > VISIBLE


def test_block_causal_mask_by_hand() -> None:
    visible = block_causal(5, 2, 1)  # blocks {0}, {1, 2}, {3, 4}
    assert visible.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]


def test_rotation_by_hand(parts: Any) -> None:
    """Two rotating pairs (0, 2) and (1, 3), at position 3, the rest untouched."""
    config = replace(parts[1], rotary=4, head_width=6, rope_theta=100.0, max_positions=8)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    cos, sin = (table[3] for table in rotary_tables_of(config, torch.device("cpu"), torch.float64))
    turned = rotate(x.double()[None, None, None], cos, sin)[0, 0, 0].tolist()
    a, b = 3 * 1.0, 3 * 0.1
    expected = [
        1 * np.cos(a) - 3 * np.sin(a),
        2 * np.cos(b) - 4 * np.sin(b),
        3 * np.cos(a) + 1 * np.sin(a),
        4 * np.cos(b) + 2 * np.sin(b),
        5.0,
        6.0,
    ]
    assert turned == pytest.approx(expected, abs=1e-6)
    eight = x.expand(4, 1, 6)
    assert reference.rotate(eight, config)[3, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_rotary_tables_are_rounded_to_the_dtype(parts: Any) -> None:
    cos, _ = rotary_tables_of(parts[1], torch.device("cpu"), torch.bfloat16)
    exact, _ = rotary_tables_of(parts[1], torch.device("cpu"), torch.float32)
    assert cos.dtype == torch.bfloat16
    assert torch.equal(cos, exact.bfloat16())


def test_rms_norm_by_hand() -> None:
    x = torch.tensor([3.0, 4.0])
    expected = [3 / 12.5**0.5, 4 / 12.5**0.5 * 2]
    assert reference.rms_norm(x, torch.tensor([1.0, 2.0]), 0.0).tolist() == pytest.approx(expected)
