"""Every family against an independent plain implementation of its published definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orderlens.decode.score import score_batch
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

from . import plain


def masked_ids(length: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 97, length)
    ids[rng.random(length) < 0.4] = 99
    return [int(token) for token in ids]


def difference(model: Any, tensors: Any, config: Any, ids: list[int], block: int | None = None) -> float:
    expected = plain.log_probs(tensors, config, ids, model.mask_id, block)
    found = model.log_probs(ids)
    assert (found[:, model.mask_id] == -np.inf).all()
    kept = np.arange(model.vocab_size) != model.mask_id
    return float(np.abs(found[:, kept] - expected[:, kept]).max())


def test_log_probs(small: Any) -> None:
    assert difference(small.model, small.tensors, small.config, masked_ids(21)) < 2e-5


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llada", {"n_kv_heads": 2, "include_qkv_bias": True}),
        ("llada", {"weight_tying": True, "rope_theta": 10000.0, "rms_norm_eps": 1e-3}),
        ("Dream", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("sdar", {"head_dim": 8, "num_key_value_heads": 1, "block_size": 8}),
        ("sdar", {"tie_word_embeddings": True, "head_dim": 24}),
        ("Fast_dLLM_Qwen", {"bd_size": 4, "num_hidden_layers": 1}),
    ],
)
def test_other_shapes(make_small: Any, family: str, changes: dict[str, Any]) -> None:
    made = make_small(family, seed=1, **changes)
    assert difference(made.model, made.tensors, made.config, masked_ids(19, 1)) < 2e-5


def test_other_blocks(small: Any) -> None:
    other = small.model.with_block_size(6)
    assert difference(other, small.tensors, small.config, masked_ids(21), 6) < 2e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes_are_close(small: Any, dtype: str) -> None:
    """The fast path in the stored precision against the plain one on weights rounded to it."""
    model = load_model(str(small.folder), device="cpu", dtype=dtype)
    kind = model.weights.dtype  # type: ignore[attr-defined]
    rounded = {name: tensor.to(kind) for name, tensor in small.tensors.items()}
    rng = np.random.default_rng(0)
    sample = EncodedSample("x", rng.integers(0, 97, 7), rng.integers(0, 97, 12))
    columns = score_batch(model, [sample], parse_policies("forced-ar"))
    canvas = _filled(model, sample, columns["position"][:-1])
    expected = plain.log_probs(rounded, small.config, canvas, model.mask_id)
    place = int(columns["position"][-1])
    assert abs(columns["logq"][-1] - expected[place, sample.target[place - 7]]) < 0.15


def _filled(model: Any, sample: EncodedSample, shown: Any) -> list[int]:
    """The canvas of the last pass: what is shown, the mask elsewhere, whole blocks."""
    text = np.concatenate([sample.prompt, sample.target])
    size = model.block_size
    offset = len(sample.prompt) % size if model.anchor == "prompt" else 0
    length = len(text) + (offset - len(text)) % size
    canvas = np.full(length, model.mask_id)
    canvas[: len(sample.prompt)] = sample.prompt
    canvas[shown] = text[shown]
    return [int(token) for token in canvas]


def test_a_path_scored_in_blocks_and_as_one_block(small: Any) -> None:
    """Full attention: later blocks are there as masks; one block is only another choice of positions."""
    rng = np.random.default_rng(3)
    sample = EncodedSample("x", rng.integers(0, 97, 5), rng.integers(0, 97, 16))
    for size in (4, 16):
        model = small.model.with_block_size(size)
        columns = score_batch(model, [sample], parse_policies("max-prob"), anchor="prompt")
        canvas = np.concatenate([sample.prompt, np.full(16, model.mask_id)])
        for position, logq in zip(columns["position"], columns["logq"], strict=True):
            seen = canvas if model.attention == "full" else canvas[: (position - 5) // size * size + size + 5]
            if model.attention == "full":
                rows = plain.log_probs(small.tensors, small.config, seen, model.mask_id)
            else:
                rows = model.log_probs(seen.tolist(), 5 % size)
            assert logq == pytest.approx(rows[position, sample.target[position - 5]], abs=1e-4)
            canvas[position] = sample.target[position - 5]
