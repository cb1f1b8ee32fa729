"""MDLM, BD3-LM and SEDD against the plain implementation of their published definitions."""

from __future__ import annotations

import math

import numpy as np
import plain_dit as plain
import pytest

from orderlens.models.dit.model import load_sedd
from orderlens.models.loading import load_model
from orderlens.models.protocol import LoadOptions
from support import write_bd3lm, write_mdlm, write_sedd

HEADS, LENGTH = 4, 21


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dit")


def some_tokens(model, share=0.4, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, model.mask_id, LENGTH)
    tokens[rng.random(LENGTH) < share] = model.mask_id
    return tokens


def assert_same(found, expected):
    assert found.shape == expected.shape
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))
    finite = np.isfinite(expected)
    assert np.abs(found[finite] - expected[finite]).max() < 1e-4


def test_mdlm(folder):
    tensors = write_mdlm(folder / "mdlm")
    model = load_model(str(folder / "mdlm"), device="cpu")
    assert (model.mask_id, model.attention, model.anchor) == (98, "full", "prompt")
    assert model.eos_ids == {97}
    tokens = some_tokens(model)
    outputs = plain.logits(tensors, tokens, heads=HEADS)
    assert_same(model.log_probs(tokens), plain.log_softmax_without(outputs, 98))


def test_level_zero_is_embedded_and_reaches_every_layer(folder):
    """Without time conditioning the network still reads σ = 0: the bias of its embedding counts."""
    write_mdlm(folder / "zero")
    tensors = write_mdlm(folder / "zero")
    tokens = np.arange(LENGTH)
    zero = plain.logits(tensors, tokens, heads=HEADS)
    for name in ("backbone.sigma_map.mlp.2.bias", "backbone.blocks.1.adaLN_modulation.weight"):
        other = plain.logits({**tensors, name: 0 * tensors[name]}, tokens, heads=HEADS)
        assert np.abs(other - zero).max() > 0.1
    found = load_model(str(folder / "zero"), device="cpu").log_probs(tokens)
    assert_same(found, plain.log_softmax_without(zero, 98))


@pytest.mark.parametrize(("block", "offset"), [(4, 0), (8, 3), (16, 0)])
def test_bd3lm(folder, block, offset):
    tensors = write_bd3lm(folder / f"bd3-{block}", block_size=block)
    model = load_model(str(folder / f"bd3-{block}"), device="cpu")
    assert (model.block_size, model.attention, model.anchor) == (block, "block-causal", "zero")
    tokens = some_tokens(model)
    visible = plain.block_causal(LENGTH, block, offset)
    outputs = plain.logits(tensors, tokens, heads=HEADS, visible=visible)
    assert_same(model.log_probs(tokens, offset), plain.log_softmax_without(outputs, 98))


def test_a_bd3lm_made_without_blocks_is_full_attention(folder):
    tensors = write_bd3lm(folder / "noblocks", cross_attn=False)
    model = load_model(str(folder / "noblocks"), device="cpu")
    assert model.attention == "full"
    tokens = some_tokens(model)
    outputs = plain.logits(tensors, tokens, heads=HEADS)
    assert_same(model.log_probs(tokens), plain.log_softmax_without(outputs, 98))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_sedd_reads_the_noise_level_that_fits_its_masks(folder, share):
    tensors = write_sedd(folder / "sedd")
    model = load_model(str(folder / "sedd"), device="cpu")
    tokens = some_tokens(model, share)
    masked = (tokens == 98).mean()
    lowest, highest = -math.log1p(-0.999 * 1e-5), -math.log(1e-3)
    sigma = min(max(lowest, -math.log1p(-masked) if masked < 1 else math.inf), highest)
    outputs = plain.logits(tensors, tokens, heads=HEADS, sigma=sigma, prefix="")
    assert_same(model.log_probs(tokens), plain.log_softmax_without(outputs, 98))


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_mdlm_with_time_conditioning_reads_it_as_well(folder, share):
    tensors = write_mdlm(folder / "timed", time_conditioning=True)
    model = load_model(str(folder / "timed"), device="cpu")
    tokens = some_tokens(model, share)
    sigma = -math.log1p(-(tokens == 98).mean())
    outputs = plain.logits(tensors, tokens, heads=HEADS, sigma=sigma)
    assert_same(model.log_probs(tokens), plain.log_softmax_without(outputs, 98))


@pytest.mark.parametrize("step", [0.05, 0.3])
def test_sedd_conditionals_are_what_the_published_sampler_draws_from(folder, step):
    """Given that a masked position is revealed, its token follows our conditional at every step."""
    tensors = write_sedd(folder / "sedd2")
    sigma = 0.7
    model = load_sedd(folder / "sedd2", "sedd", LoadOptions(device="cpu"), sigma=sigma)
    tokens = some_tokens(model)
    masked = tokens == 98
    outputs = plain.logits(tensors, tokens, heads=HEADS, sigma=sigma, prefix="")
    scores = plain.sedd_log_scores(outputs, tokens, sigma)[masked]
    revealed = plain.sedd_analytic_step(scores, sigma, step)[:, :-1]
    law = np.log(revealed / revealed.sum(axis=1, keepdims=True))
    assert np.abs(law - model.log_probs(tokens)[masked][:, :-1]).max() < 1e-4


def test_one_level_for_all_states_is_another_model(folder):
    write_sedd(folder / "sedd3")
    fixed = [load_sedd(folder / "sedd3", "s", LoadOptions(device="cpu"), sigma=s) for s in (0.1, 3.0)]
    tokens = some_tokens(fixed[0])
    assert fixed[0].digest != fixed[1].digest
    assert np.abs(np.exp(fixed[0].log_probs(tokens)) - np.exp(fixed[1].log_probs(tokens))).max() > 0.01
