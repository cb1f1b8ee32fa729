"""Every model obeys the protocol: the registered ones, and a small checkpoint of every family.

A new name in the registry, and a new writer in ``support``, are tested without writing a test.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from orderlens.decode.head import self_certainty, take_rows, target_stats
from orderlens.decode.reference import reference_score
from orderlens.decode.score import score_batch
from orderlens.errors import OrderLensError, UserInputError
from orderlens.models.abilities import CastsDtype, Chats, OnDevice, ReleasesMemory, SuggestsBatch
from orderlens.models.family_index import FAMILIES
from orderlens.models.loading import MODELS, load_model
from orderlens.models.protocol import StateBatch
from orderlens.rules import parse_policies
from orderlens.testing import StubModel, write_small
from orderlens.texts.samples import EncodedSample
from support import (
    write_bd3lm,
    write_bert,
    write_dense,
    write_llada2,
    write_mdlm,
    write_modernbert,
    write_moe,
    write_roberta,
    write_sedd,
    write_xlnet,
)

CHECKPOINTS = {
    "orderlens, block-causal": ("orderlens", write_small, {}),
    "orderlens, full attention": ("orderlens", write_small, {"attention": "full"}),
    "orderlens, permutation-trained": ("orderlens", write_small, {"attention": "permutation"}),
    "orderlens, shared key/value heads": (
        "orderlens",
        write_small,
        {"n_heads": 4, "n_kv_heads": 2, "qk_norm": False, "int8": True},
    ),
    "llada2_moe": ("llada2_moe", write_llada2, {}),
    "llada2_moe, expert capacity": (
        "llada2_moe",
        write_llada2,
        {"expert_capacity": 6, "block_size": 8, "delete_token_id": 100, "split_token_id": 101},
    ),
    "lladamoe": ("lladamoe", write_moe, {}),
    "lladamoe, router bias": ("lladamoe", write_moe, {"moe_router_enable_expert_bias": True}),
    "sdar_moe": ("sdar_moe", write_moe, {"family": "sdar_moe"}),
    "sdar_moe, every second layer": (
        "sdar_moe",
        write_moe,
        {
            "family": "sdar_moe",
            "decoder_sparse_step": 2,
            "mlp_only_layers": [],
            "norm_topk_prob": False,
            "block_size": 8,
        },
    ),
    "mdlm": ("mdlm", write_mdlm, {}),
    "bd3lm": ("bd3lm", write_bd3lm, {}),
    "sedd": ("sedd", write_sedd, {}),
    **{
        f"dense, {family}": (family, write_dense, {"family": family})
        for family in ("llada", "Dream", "sdar", "Fast_dLLM_Qwen", "nemotron_labs_diffusion")
    },
    "xlnet": ("xlnet", write_xlnet, {}),
    "bert": ("bert", write_bert, {}),
    "roberta": ("roberta", write_roberta, {}),
    "modernbert": ("modernbert", write_modernbert, {}),
}
"""A checkpoint that the test writes → its family, its writer and the writer's options."""
NAMES = [
    *MODELS.names(),
    "hmm:incoherence=0.3,block=8",
    "hmm:attention=full,block=8",
    *CHECKPOINTS,
    "stub, block-causal",
    "stub, full attention",
]


def context_rule(tokens, position):
    """Logits that depend on everything visible, so that a wrong window or cache shows."""
    weight = np.sin(np.outer(np.arange(1, 61), np.arange(len(tokens)) + 1.0 + tokens))
    return weight.sum(axis=1) + np.cos(position * np.arange(60))


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory):
    name = request.param
    if name.startswith("stub"):
        kind = "full" if "full" in name else "block-causal"
        return StubModel(context_rule, vocab_size=61, attention=kind, eos_ids={59}, digest="rule")
    if name in CHECKPOINTS:
        if find_spec("torch") is None:
            pytest.skip("needs torch")
        _, write, options = CHECKPOINTS[name]
        folder = tmp_path_factory.mktemp("checkpoint") / "model"
        write(folder, **options)
        return load_model(str(folder), device="cpu")
    try:
        return load_model(name, device="cpu")
    except OrderLensError as error:
        pytest.skip(f"{name} cannot be loaded here: {error}")


@pytest.fixture(scope="module")
def ids(model):
    """Ordinary ids of the model, enough for two blocks and a bit."""
    usual = [
        i for i in range(model.vocab_size) if i not in model.eos_ids | model.special_ids | {model.mask_id}
    ]
    known = usual[: min(len(usual), 60)]
    return np.random.default_rng(7).choice(known, 2 * model.block_size + 5)


def half_masked(model, ids):
    tokens = ids.copy()
    tokens[::3] = model.mask_id
    return tokens


def state_of(model, tokens, block):
    """One block of ``tokens`` (the canvas, under full attention) as a state, with its masked rows."""
    b = model.block_size
    start, window = (
        (0, tokens) if model.attention == "full" else (block * b, tokens[block * b : (block + 1) * b])
    )
    offsets = np.flatnonzero(window == model.mask_id)
    return start, window, offsets


def stats_of(model, session, slots, states, targets):
    """Statistics of all masked rows of several (start, window, offsets), in one batch."""
    starts, windows, offsets = zip(*states, strict=True)
    rows = np.concatenate([np.full(len(offset), n) for n, offset in enumerate(offsets)])
    batch = StateBatch(
        np.array(slots), np.array(starts), np.stack(windows), rows, np.concatenate(offsets).astype(np.int64)
    )
    return target_stats(session.evaluate(batch), model.eos_ids, targets)


def test_every_family_has_a_checkpoint_here():
    assert {family for family, *_ in CHECKPOINTS.values()} == set(FAMILIES.names())


def test_facts(model):
    assert 0 <= model.mask_id < model.vocab_size
    assert model.eos_ids <= set(range(model.vocab_size))
    assert model.mask_id not in model.eos_ids | model.special_ids
    assert not model.eos_ids & model.special_ids
    assert model.attention in ("block-causal", "full")
    assert model.anchor in ("zero", "prompt")
    assert model.precision in ("float32", "float64")
    assert model.max_positions >= 4 * model.block_size


def test_the_same_files_have_the_same_digest(model):
    assert model.digest
    assert model.with_block_size(model.block_size).digest == model.digest
    if not isinstance(model, StubModel):
        assert load_model(model.name).digest == model.digest


def test_tokenizer_round_trip(model):
    text = "3 1 4 1 5" if isinstance(model, StubModel) else "a small test, of plain words"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_log_probs_are_normalised_and_exclude_the_mask(model, ids):
    tokens = half_masked(model, ids)
    log_p = model.log_probs(tokens.tolist())
    assert log_p.shape == (len(tokens), model.vocab_size)
    assert (log_p[:, model.mask_id] == -np.inf).all()
    assert np.abs(np.log(np.exp(log_p).sum(axis=1))).max() < 1e-5
    assert np.array_equal(log_p, model.log_probs(tokens.tolist()))
    assert model.log_probs([]).shape == (0, model.vocab_size)
    for wrong in ([-1], [model.vocab_size], [1.5], "ab", [[1, 2]]):  # none may count from the end or be cut
        with pytest.raises(UserInputError, match="token id"):
            model.log_probs(wrong)


def test_what_a_position_sees(model, ids):
    """Block-causal: its own block and all before. Full attention: the whole canvas."""
    b = model.block_size
    changed = ids.copy()
    changed[2 * b :] = changed[2 * b :][::-1]
    assert not np.array_equal(changed, ids)
    before, after = model.log_probs(ids.tolist()), model.log_probs(changed.tolist())
    difference = np.abs(np.exp(before) - np.exp(after)).max(axis=1)
    if model.attention == "full":
        assert difference[: 2 * b].max() > 1e-4
    else:
        assert difference[: 2 * b].max() < 1e-5


def test_the_grid_moves_with_its_offset(model, ids):
    """A sequence whose grid starts at 3 has the short block [0, 3) in front."""
    if model.attention == "full":
        assert np.array_equal(model.log_probs(ids.tolist(), 3), model.log_probs(ids.tolist()))
        return
    tokens, b = half_masked(model, ids), model.block_size
    moved = model.log_probs(tokens.tolist(), grid_offset=3)
    for end in (3, 3 + b):  # nothing sees past the end of its own block
        start = max(0, end - b)
        alone = model.log_probs(tokens[:end].tolist(), 3)[start:end]
        # Probabilities: how much the log of one in e³⁷ differs with the length is the machine's.
        assert np.abs(np.exp(alone) - np.exp(moved[start:end])).max() < 1e-4


@pytest.mark.parametrize("way", ["prefill", "extend", "keep"])
def test_session_rows_equal_the_plain_forward(model, ids, way):
    """Prefilled, extended and repeated slots all give the rows of ``log_probs``."""
    b = model.block_size
    tokens = np.concatenate([ids[:b], half_masked(model, ids[b : 2 * b])])
    state = state_of(model, tokens, 1)
    places = state[0] + state[2]
    targets = ids[places]
    session = model.open_session()
    if model.attention == "full":
        session.prefill([ids[:0]] * 2, [0, 0])
    else:
        session.prefill([ids[:0] if way == "extend" else ids[:b]] * 2, [0, 0])
        if way == "extend":
            session.extend(np.array([0, 1]), np.stack([ids[:b]] * 2))
    if way == "keep":
        session.keep(np.array([1, 0, 1]))
    stats = stats_of(model, session, [2 if way == "keep" else 1], [state], targets)
    plain = model.log_probs(tokens.tolist())[places]
    best = np.sort(plain, axis=1)
    assert np.allclose(stats.target_logprob, plain[np.arange(len(places)), targets], atol=2e-4)
    assert np.allclose(stats.positions.top_logprob, best[:, -1], atol=2e-4)
    assert np.allclose(stats.positions.second_logprob, best[:, -2], atol=2e-4)
    with np.errstate(invalid="ignore"):
        entropy = -np.nansum(np.exp(plain) * plain, axis=1)
    assert np.allclose(stats.positions.entropy, entropy, atol=1e-3)


def test_self_certainty_is_that_of_the_plain_rows(model, ids):
    """KL(uniform ‖ p) without the ids that no row allows; undefined where an allowed id has p = 0."""
    tokens = np.concatenate([ids[: model.block_size], half_masked(model, ids[: model.block_size])])
    start, window, offsets = state_of(model, tokens, 1)
    session = model.open_session()
    session.prefill([tokens[:start]], [0])
    rows = session.evaluate(
        StateBatch(np.array([0]), np.array([start]), window[None], np.zeros_like(offsets), offsets)
    )
    plain = np.asarray(model.log_probs(tokens.tolist()), np.float64)
    allowed = plain[start + offsets][:, (plain > -np.inf).any(axis=0)]
    uniform = 1.0 / allowed.shape[1]
    expected = (uniform * (np.log(uniform) - allowed)).sum(axis=1)
    expected[np.isinf(expected)] = np.nan
    assert np.allclose(self_certainty(rows, model.mask_id), expected, atol=2e-4, equal_nan=True)
    assert len(self_certainty(take_rows(rows, offsets[:0]), model.mask_id)) == 0


def test_a_slot_that_was_repeated_goes_its_own_way(model, ids):
    """Two slots of one prefix, extended by different blocks, do not see each other's tokens."""
    if model.attention == "full":
        pytest.skip("nothing is cached")
    b = model.block_size
    session = model.open_session()
    session.prefill([ids[:b]], [0])
    session.keep(np.array([0, 0]))
    blocks = np.stack([ids[b : 2 * b], ids[b : 2 * b][::-1]])
    session.extend(np.array([0, 1]), blocks)
    window = np.full(b, model.mask_id)
    states = [(2 * b, window, np.arange(b))] * 2
    found = stats_of(model, session, [0, 1], states, np.tile(ids[:b], 2)).target_logprob.reshape(2, b)
    for row, block in zip(found, blocks, strict=True):
        plain = model.log_probs(np.concatenate([ids[:b], block, window]).tolist())[2 * b :]
        assert np.allclose(row, plain[np.arange(b), ids[:b]], atol=2e-4)


def test_a_state_does_not_depend_on_its_batch(model, ids):
    tokens, b = half_masked(model, ids), model.block_size
    states = [state_of(model, tokens, block) for block in (0, 1)]
    session = model.open_session()
    prefix = ids[:0] if model.attention == "full" else tokens[: 2 * b]
    clean = np.where(prefix == model.mask_id, ids[: len(prefix)], prefix)
    session.prefill([clean] * 2, [0, 0])
    targets = [ids[start + offsets] for start, _, offsets in states]
    together = stats_of(model, session, [0, 1], states, np.concatenate(targets))
    alone = [
        stats_of(model, session, [n], [state], target)
        for n, (state, target) in enumerate(zip(states, targets, strict=True))
    ]
    for name in ("target_logprob", "competitor_logprob"):
        apart = np.concatenate([getattr(part, name) for part in alone])
        assert np.allclose(getattr(together, name), apart, atol=1e-4)


def test_scoring_equals_the_slow_reference(model, ids):
    model = model.with_block_size(min(4, model.block_size))  # the reference runs a whole forward per reveal
    sample = EncodedSample("x", ids[:5], ids[5 : model.block_size + 7])
    policies = parse_policies("forced-ar,random:2,max-prob+top=3,oracle-min-q,max-prob+klass=0:0.003:1")
    columns = score_batch(model, [sample], policies)
    again = score_batch(model, [sample], policies)
    assert all(np.array_equal(columns[name], again[name]) for name in columns)
    for o, policy in enumerate(policies):
        mine = columns["order"] == o
        plain = list(reference_score(model, sample, policy))
        assert columns["position"][mine].tolist() == [reveal.position for reveal in plain]
        assert columns["forward"][mine].tolist() == [reveal.forward for reveal in plain]
        assert np.allclose(columns["logq"][mine], [reveal.logq for reveal in plain], atol=2e-4)


def test_other_block_sizes_are_offered(model, ids):
    size = 4 if model.block_size != 4 else 8
    other = model.with_block_size(size)
    assert other.block_size == size
    tokens = half_masked(model, ids)
    same = np.allclose(other.log_probs(tokens.tolist()), model.log_probs(tokens.tolist()), atol=1e-6)
    assert same == (model.attention == "full")
    if not isinstance(model, StubModel):
        for wrong in (0, -1):
            with pytest.raises(UserInputError, match=r"block|positions"):
                model.with_block_size(wrong)


def test_abilities_are_what_they_say(model):
    if isinstance(model, SuggestsBatch):
        assert model.suggested_batch(40) >= model.suggested_batch(4 * model.block_size) >= 1
    if isinstance(model, ReleasesMemory):
        assert model.release_memory() is None
    if isinstance(model, CastsDtype):
        assert model.with_dtype("bfloat16").digest != model.digest
    if isinstance(model, OnDevice):
        assert model.device.type == "cpu"
    if isinstance(model, Chats) and model.chat is not None:
        assert "hello" in model.chat.render([{"role": "user", "content": "hello"}])
