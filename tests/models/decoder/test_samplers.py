"""Paths and tokens of the authors' own samplers, restated plainly, against our orders on the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

from . import plain, samplers

PROMPT = np.random.default_rng(5).integers(0, 97, 10)


def decode(model: Any, order: str, length: int) -> list[tuple[int, int]]:
    settings = GenerationSettings(max_new_tokens=length, stop_at_eos=False)
    sample = EncodedSample("x", PROMPT, np.array([], np.int64))
    columns = generate_batch(model, [sample], parse_policies(order), settings).columns
    return list(zip(columns["position"].tolist(), columns["token_id"].tolist(), strict=True))


def rows_of(made: Any) -> Any:
    return lambda x: plain.log_probs(made.tensors, made.config, x, 99)


@pytest.mark.parametrize("order", ["max-prob", "top-margin", "entropy"])
@pytest.mark.parametrize("block", [4, 12])
def test_llada(make_small: Any, order: str, block: int) -> None:
    made = make_small("llada")
    expected = samplers.llada(rows_of(made), PROMPT, 12, block, 99, order)
    assert decode(made.model.with_block_size(block), order, 12) == expected


@pytest.mark.parametrize("order", ["max-prob", "top-margin", "entropy"])
def test_dream(make_small: Any, order: str) -> None:
    """One block of all tokens. Their schedule commits nothing first and two tokens last."""
    made = make_small("Dream")
    sets = samplers.dream(rows_of(made), PROMPT, 12, 99, order)
    assert [len(found) for found in sets] == [0, *[1] * 10, 2]
    path = decode(made.model.with_block_size(12), order, 12)
    assert path[:10] == [reveal for found in sets[:-1] for reveal in found]
    assert path[10] == sets[-1][0]
    assert {position for position, _ in path[10:]} == {position for position, _ in sets[-1]}


@pytest.mark.parametrize("block", [4, 8])
def test_sdar(make_small: Any, block: int) -> None:
    made = make_small("sdar", block_size=block)
    assert made.model.block_size == block
    assert decode(made.model, "max-prob", 12) == samplers.sdar(rows_of(made), PROMPT, 12, block, 99)


def raw_of(made: Any) -> Any:
    """Log-probabilities as the network orders its rows, the mask excluded."""

    def raw(x: Any) -> Any:
        seen = plain.block_causal(len(x), 8)
        rows = plain.qwen_logits(made.tensors, made.config, torch.as_tensor(x), seen)
        rows[:, 99] = -torch.inf
        return rows.log_softmax(-1).numpy()

    return raw


def test_fast_dllm_left_to_right(make_small: Any) -> None:
    """Sub-blocks of one position are left to right: every token, also each block's first one, agrees."""
    made = make_small("Fast_dLLM_Qwen")
    expected = samplers.fast_dllm(raw_of(made), PROMPT, 14, 8, 1, 99)
    assert decode(made.model, "forced-ar", 14) == expected


@pytest.mark.parametrize("small_block", [4, 8])
def test_fast_dllm_by_confidence(make_small: Any, small_block: int) -> None:
    """Their path, replayed: each token is the top of our row, each place the surest of those they allow."""
    made = make_small("Fast_dLLM_Qwen")
    path = samplers.fast_dllm(raw_of(made), PROMPT, 14, 8, small_block, 99)
    x = np.concatenate([PROMPT, np.full(14, 99)])
    for position, token in path:
        start, low = position // 8 * 8, position // small_block * small_block
        rows = made.model.log_probs(x[: start + 8].tolist())
        assert rows[position].argmax() == token
        open_places = [p for p in range(low, low + small_block) if x[p] == 99]
        if position == start:
            assert (x[start:] == 99).all()  # their sampler fills a block's first position before all others
        else:
            assert position == max(open_places, key=lambda p: rows[p].max())
        x[position] = token
    assert len(path) == 14
