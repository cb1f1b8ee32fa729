"""Properties over random chains, texts, prompts and block sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate, reference_score
from orderlens.decode.score import score_batch
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

ALL = parse_policies(
    "forced-ar,reverse-ar,random:1,max-prob,top-margin,entropy,oracle-max-q,oracle-margin,oracle-min-q"
)

chains = st.builds(
    HiddenMarkovModel,
    seed=st.integers(0, 10**6),
    n_states=st.integers(1, 6),
    n_characters=st.integers(2, 12),
    block_size=st.integers(1, 9),
)
anchors = st.sampled_from(["zero", "prompt"])


def random_sample(model, prompt, target, seed):
    ids = keyed_generator(seed, "property").integers(0, model.tokenizer.eos_id, prompt + target)
    return EncodedSample(f"p{seed}", ids[:prompt], ids[prompt:])


@settings(max_examples=40, deadline=None)
@given(chains, st.integers(0, 14), st.integers(1, 20), st.integers(0, 999), anchors)
def test_all_orders_agree_with_the_joint(model, prompt, target, seed, anchor):
    sample = random_sample(model, prompt, target, seed)
    columns = score_batch(model, [sample], ALL, anchor)
    whole = np.concatenate([sample.prompt, sample.target])
    truth = model.joint_log_prob(whole) - model.joint_log_prob(sample.prompt)
    for o in range(len(ALL)):
        assert abs(columns["logq"][columns["order"] == o].sum() - truth) / target < 1e-9


@settings(max_examples=15, deadline=None)
@given(chains, st.integers(0, 10), st.integers(1, 14), st.integers(0, 999), anchors, st.floats(0.05, 2))
def test_fast_and_slow_agree_on_incoherent_chains(model, prompt, target, seed, anchor, incoherence):
    model.incoherence = incoherence
    sample = random_sample(model, prompt, target, seed)
    columns = score_batch(model, [sample], ALL, anchor)
    for o, order in enumerate(ALL):
        slow = reference_score(model, sample, order, anchor)
        mine = columns["order"] == o
        assert np.abs(columns["logq"][mine].sum() - sum(item.logq for item in slow)) < 1e-9 * target + 1e-12
        assert columns["position"][mine].tolist() == [item.position for item in slow]


@settings(max_examples=15, deadline=None)
@given(
    chains,
    st.integers(0, 10),
    st.integers(1, 14),
    st.integers(0, 999),
    anchors,
    st.sampled_from([0.0, 0.5, 1.5]),
)
def test_generation_agrees_with_the_slow_path(model, prompt, length, seed, anchor, temperature):
    sample = random_sample(model, prompt, 1, seed)
    orders = ALL[:6]
    settings_ = GenerationSettings(length, temperature, seed, anchor=anchor)
    columns = generate_batch(model, [sample], orders, settings_).columns
    for o, order in enumerate(orders):
        slow = reference_generate(
            model, sample, order, length, temperature=temperature, sample_seed=seed, anchor=anchor
        )
        mine = columns["order"] == o
        assert columns["token_id"][mine].tolist() == [item.token for item in slow]
        assert columns["position"][mine].tolist() == [item.position for item in slow]
