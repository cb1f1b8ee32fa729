"""The batched generator against the slow one; stopping, overflow, sampling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from orderlens.common.temperature import TemperatureSchedule
from orderlens.decode import batches
from orderlens.decode.generate import MIN_TEMPERATURE, GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policies
from orderlens.rules.orders import StaticOrder
from orderlens.texts.samples import EncodedSample

DEPLOYABLE = parse_policies("forced-ar,reverse-ar,random,max-prob,max-prob:argmax,top-margin,entropy")


def pairs(samples, one_of):
    """Yield every ``one_of``-th pair of sample and order; all pairs are in the batch."""
    for s, sample in enumerate(samples):
        for o, order in enumerate(DEPLOYABLE):
            if (s + o) % one_of == 0:
                yield s, sample, o, order


def trace(columns, sample, order):
    mine = (columns["sample"] == sample) & (columns["order"] == order)
    return {name: values[mine] for name, values in columns.items()}


@pytest.mark.parametrize(
    ("temperature", "anchor", "stop"),
    [
        (0.0, "zero", True), (0.0, "prompt", False), (0.7, "zero", False), (0.7, "prompt", True),
        (TemperatureSchedule(1.4, 0.3), "zero", False), (TemperatureSchedule(0.2, 2, True), "prompt", False),
    ],
)  # fmt: skip
def test_fast_equals_slow_on_hmm(hmm, mixed_samples, temperature, anchor, stop):
    settings = GenerationSettings(20, temperature, 5, stop, anchor)
    columns = generate_batch(hmm, mixed_samples, DEPLOYABLE, settings).columns
    given = {"temperature": temperature, "sample_seed": 5, "stop_at_eos": stop, "anchor": anchor}
    for s, sample, o, order in pairs(mixed_samples, 2):
        fast, slow = trace(columns, s, o), reference_generate(hmm, sample, order, 20, **given)
        assert list(zip(fast["position"], fast["token_id"], strict=True)) == [
            (item.position, item.token) for item in slow
        ]
        assert np.abs(fast["logq"] - [item.logq for item in slow]).max() < 1e-9


@pytest.mark.needs_torch
@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, TemperatureSchedule(0.9, 0.4)])
def test_fast_equals_slow_on_a_transformer(make_transformer, mixed_samples, attention, temperature):
    model = make_transformer(attention)
    samples = [EncodedSample(x.id, np.append(x.prompt % 48 + 2, 5)) for x in mixed_samples]
    settings = GenerationSettings(20, temperature, stop_at_eos=False)
    columns = generate_batch(model, samples, DEPLOYABLE, settings).columns
    for s, sample, o, order in pairs(samples, 3):
        fast = trace(columns, s, o)
        slow = reference_generate(model, sample, order, 20, temperature=temperature, stop_at_eos=False)
        assert fast["position"].tolist() == [item.position for item in slow]
        assert fast["token_id"].tolist() == [item.token for item in slow]
        assert np.abs(fast["logq"] - [item.logq for item in slow]).max() < 5e-5


def test_canvas_is_completed_and_overflow_is_flagged(hmm):
    sample = EncodedSample("a", np.arange(5))
    generation = generate_batch(hmm, [sample], DEPLOYABLE[:1], GenerationSettings(10, stop_at_eos=False))
    positions, overflow = generation.columns["position"], generation.columns["is_overflow"]
    assert positions.tolist() == list(range(5, 16))
    assert overflow.tolist() == [False] * 10 + [True]
    assert generation.chains[0].finish_reason == "length"


def test_decoding_ends_after_the_block_with_an_eos():
    model = HiddenMarkovModel(block_size=4)
    model.parameters.transition_KK[:] = 0
    model.parameters.transition_KK[:, -1] = 1.0  # the chain ends after one character
    generation = generate_batch(
        model, [EncodedSample("a", np.array([1]))], DEPLOYABLE[:4], GenerationSettings(40)
    )
    for chain in generation.chains:
        assert chain.finish_reason == "eos"
        assert chain.steps == 3
    endless = generate_batch(
        model, [EncodedSample("a", np.array([1]))], DEPLOYABLE[:1], GenerationSettings(7, stop_at_eos=False)
    )
    assert (endless.columns["token_id"] == model.tokenizer.eos_id).all()
    assert endless.chains[0].finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_results_do_not_depend_on_the_batch(hmm, mixed_samples, temperature):
    settings = GenerationSettings(24, temperature, 3, stop_at_eos=True)
    together = generate_batch(hmm, mixed_samples, DEPLOYABLE, settings).columns
    for s, sample, o, order in pairs(mixed_samples, 2):
        alone = generate_batch(hmm, [sample], [order], settings).columns
        here = trace(together, s, o)
        assert here["position"].tolist() == alone["position"].tolist()
        assert here["token_id"].tolist() == alone["token_id"].tolist()
        assert np.abs(here["logq"] - alone["logq"]).max() < 1e-12


@pytest.mark.parametrize("spec", ["forced-ar", "max-prob:argmax", "random"])
def test_sampling_follows_the_tempered_conditional(spec):
    """First token of many seeds against the exact tempered distribution (chi-square)."""
    model = HiddenMarkovModel(seed=4, n_states=3, n_characters=4, block_size=1)
    order, prompt = parse_policies(spec)[0], np.array([0, 1, 2])
    log_p = model.log_probs([0, 1, 2, model.mask_id])[3]
    weight = np.exp(log_p / 0.6)
    samples = [EncodedSample(f"s{i}", prompt) for i in range(1500)]
    columns = generate_batch(model, samples, [order], GenerationSettings(1, 0.6, 11)).columns
    counts = np.bincount(columns["token_id"], minlength=5)[:5]
    assert scipy_stats.chisquare(counts, 1500 * weight[:5] / weight[:5].sum()).pvalue > 1e-3
    token = columns["token_id"]
    assert np.allclose(columns["logq"], log_p[token], atol=1e-12)
    assert np.allclose(columns["tempered_logq"], np.log((weight / weight.sum())[token]), atol=1e-12)


def test_selection_rules_of_max_prob_differ_only_when_sampling(hmm, mixed_samples):
    both = parse_policies("max-prob,max-prob:argmax")
    greedy = generate_batch(hmm, mixed_samples, both, GenerationSettings(16, 0.0)).columns
    assert np.array_equal(greedy["position"][greedy["order"] == 0], greedy["position"][greedy["order"] == 1])
    hot = generate_batch(hmm, mixed_samples, both, GenerationSettings(16, 1.5, stop_at_eos=False)).columns
    assert not np.array_equal(hot["position"][hot["order"] == 0], hot["position"][hot["order"] == 1])


def test_seed_changes_the_draws(hmm, mixed_samples):
    runs = [
        generate_batch(hmm, mixed_samples, DEPLOYABLE[:1], GenerationSettings(16, 1.0, seed, False)).columns
        for seed in (0, 0, 1)
    ]
    assert np.array_equal(runs[0]["token_id"], runs[1]["token_id"])
    assert not np.array_equal(runs[0]["token_id"], runs[2]["token_id"])


def test_oracles_cannot_generate(hmm, mixed_samples):
    with pytest.raises(UserInputError, match="'oracle-min-q' needs the target"):
        generate_batch(hmm, mixed_samples, parse_policies("oracle-min-q"), GenerationSettings(4))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_new_tokens", 0, "max_new_tokens=0"),
        ("max_new_tokens", 16385, "16384"),
        ("temperature", -0.1, "temperature=-0.1"),
        ("temperature", float("nan"), "temperature=nan"),
        ("temperature", float("inf"), "temperature=inf"),
        ("temperature", 1e-310, "use 0 for greedy decoding"),
        ("temperature", 9e-5, "use 0 for greedy decoding"),
        ("temperature", TemperatureSchedule(0.8, 0), "temperature=0.8:0: both ends .* use 0.0001"),
        ("temperature", TemperatureSchedule(0.8, float("nan"), True), "=position:0.8:nan: both ends"),
    ],
)
def test_bad_settings_are_named(field, value, message):
    with pytest.raises(UserInputError, match=message):
        GenerationSettings(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_new_tokens", 1), ("max_new_tokens", 16384), ("temperature", 0.0), ("temperature", 1e-4)],
)
def test_the_ends_of_what_is_allowed_are_allowed(field, value):
    assert getattr(GenerationSettings(**{field: value}), field) == value


@pytest.mark.parametrize("kind", ["hmm", "block-causal"])
def test_the_smallest_temperature_draws_the_likeliest_token(hmm, make_transformer, mixed_samples, kind):
    model = hmm if kind == "hmm" else make_transformer(kind)
    orders = parse_policies("forced-ar,max-prob,random:2")
    settings = GenerationSettings(12, MIN_TEMPERATURE, stop_at_eos=False)
    columns = generate_batch(model, mixed_samples, orders, settings).columns
    assert np.isfinite(columns["logq"]).all()
    assert (columns["tempered_logq"] <= 0).all()
    clear = columns["max_logprob"] - columns["second_logprob"] > 0.01
    assert clear.any()
    assert columns["logq"][clear] == pytest.approx(columns["max_logprob"][clear])


class Halved(StaticOrder):
    """A wrong rule: from the second block on it names only even places, twice."""

    id, summary = "halved", "wrong on purpose"

    def path(self, n_positions, sample_id, block):
        places = np.arange(n_positions)
        return places if block == 0 else places // 2 * 2


def test_a_path_that_is_no_permutation_is_refused_before_anything_is_decoded(hmm, mixed_samples):
    seen = []
    with pytest.raises(UserInputError, match=r"'halved'.*block 1\) is not a permutation of 0…"):
        generate_batch(hmm, mixed_samples, [Halved()], GenerationSettings(70), seen.append)
    assert seen == []


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_halves_that_advance_in_turn_give_the_same_texts(hmm, mixed_samples, temperature, monkeypatch):
    settings = GenerationSettings(20, temperature, 5)
    whole = generate_batch(hmm, mixed_samples, DEPLOYABLE, settings)
    told = []
    monkeypatch.setattr(batches, "OVERLAP_SIZE", 2)
    halves = generate_batch(hmm, mixed_samples, DEPLOYABLE, settings, on_reveals=told.append)
    for name, values in whole.columns.items():
        assert np.allclose(halves.columns[name], values, atol=1e-12), name
    assert [chain.finish_reason for chain in halves.chains] == [chain.finish_reason for chain in whole.chains]
    assert sum(told) == len(whole.columns["position"])


def test_policies_of_a_prompt_share_their_first_state_without_speculation(hmm, mixed_samples, monkeypatch):
    counts, session = [], type(hmm.open_session())
    evaluate = session.evaluate

    def counted(self, states):
        counts.append(len(states.tokens_NW))
        return evaluate(self, states)

    monkeypatch.setattr(session, "evaluate", counted)
    monkeypatch.setattr(batches, "OVERLAP_SIZE", 2)
    generate_batch(hmm, mixed_samples, DEPLOYABLE, GenerationSettings(20, 0.7, stop_at_eos=False))
    assert sum(counts[:2]) in (len(mixed_samples), len(mixed_samples) + 1)  # a sample may be in both halves
    assert sum(counts[2:4]) == len(mixed_samples) * len(DEPLOYABLE)
