"""Every registered model obeys the protocol: new entries are tested without writing a test."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.score import score_batch
from orderlens.errors import OrderLensError
from orderlens.models.loading import MODELS, load_model
from orderlens.models.protocol import StateBatch
from orderlens.policies import parse_policies
from orderlens.samples import EncodedSample

SPECS = [*MODELS.names(), "hmm:incoherence=0.3,block=8"]


@pytest.fixture(scope="module", params=SPECS)
def model(request):
    try:
        return load_model(request.param, device="cpu")
    except OrderLensError as error:
        pytest.skip(f"{request.param} cannot be loaded here: {error}")


@pytest.fixture(scope="module")
def text_ids(model):
    ids = model.tokenizer.encode(
        "The river ran past the old mill, and the children watched the boats go by. " * 6
    )
    return np.array([i for i in ids if i not in model.eos_ids][: 2 * model.block_size + 5])


def test_facts(model):
    assert 0 <= model.mask_id < model.vocab_size
    assert model.eos_ids <= set(range(model.vocab_size))
    assert model.mask_id not in model.eos_ids | model.special_ids
    assert not model.eos_ids & model.special_ids
    assert model.attention in ("block-causal", "full")
    assert model.anchor in ("zero", "prompt")
    assert model.precision in ("float32", "float64")
    assert model.max_positions >= 4 * model.block_size
    assert model.digest
    assert load_model(model.name).digest == model.digest


def test_tokenizer_round_trip(model):
    text = "a small test, of plain words"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_log_probs_are_normalised_and_exclude_the_mask(model, text_ids):
    tokens = text_ids.copy()
    tokens[::3] = model.mask_id
    log_p = model.log_probs(tokens.tolist())
    assert log_p.shape == (len(tokens), model.vocab_size)
    assert (log_p[:, model.mask_id] == -np.inf).all()
    assert np.abs(np.log(np.exp(log_p).sum(axis=1))).max() < 1e-5


def test_block_causal_models_cannot_see_later_blocks(model, text_ids):
    if model.attention != "block-causal":
        pytest.skip("full attention sees the whole canvas")
    b = model.block_size
    changed = text_ids.copy()
    changed[2 * b :] = changed[2 * b :][::-1]
    before, after = model.log_probs(text_ids.tolist()), model.log_probs(changed.tolist())
    assert np.allclose(before[: 2 * b], after[: 2 * b], atol=1e-5)


def test_session_rows_equal_the_plain_forward(model, text_ids):
    """Prefilled, extended and repeated slots all give the rows of ``log_probs``."""
    from orderlens.decode.head import target_stats

    b = model.block_size
    if model.attention != "block-causal":
        pytest.skip("no prefix cache")
    window = np.full(b, model.mask_id)
    window[: b // 2] = text_ids[b : b + b // 2]
    plain = model.log_probs(np.concatenate([text_ids[:b], window]).tolist())[b:]
    offsets = np.arange(b // 2, b)
    targets = text_ids[b + offsets]
    for way in ("prefill", "extend"):
        session = model.open_session()
        session.prefill([text_ids[:b] if way == "prefill" else text_ids[:0]] * 2, [0, 0])
        if way == "extend":
            session.extend(np.array([0, 1]), np.stack([text_ids[:b]] * 2))
        session.keep(np.array([1, 0, 1]))
        states = StateBatch(
            np.array([2]), np.array([b]), window[None], np.zeros(len(offsets), np.int64), offsets
        )
        stats = target_stats(session.evaluate(states), model.eos_ids, targets)
        assert np.allclose(stats.target_logprob, plain[offsets, targets], atol=2e-4)
        assert np.allclose(stats.positions.top_logprob, plain[offsets].max(axis=1), atol=2e-4)


def test_scoring_is_deterministic(model, text_ids):
    sample = EncodedSample(
        "x", text_ids[: model.block_size], text_ids[model.block_size : model.block_size + 9]
    )
    orders = parse_policies("forced-ar,oracle-min-q")
    first, second = (score_batch(model, [sample], orders) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_other_block_sizes_are_offered(model):
    assert model.with_block_size(4).block_size == 4
