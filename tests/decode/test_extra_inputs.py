"""Extra inputs that rules request by name: KL to the previous pass, planned passes, look-ahead states."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_generate, reference_score
from orderlens.decode.score import score_batch
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policy
from orderlens.rules.orders import ConfidenceOrder, LookaheadOrder
from orderlens.rules.policy import Policy
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample

KINDS = ["block-causal", "full"]


class Restless(ConfidenceOrder):
    """Where the distribution moved most first; checks that a block begins without a history."""

    id, summary, needs = "restless", "", frozenset({"kl_previous", "planned_passes"})

    def scores(self, view):
        moved = view.extras["kl_previous"]
        assert np.array_equal(np.isinf(moved), (view.forward_C == 0)[view.chain_R])
        assert (view.extras["planned_passes"] == np.ceil(view.filling_C / 2)[view.chain_R]).all()
        return np.where(np.isinf(moved), view.stats.top_logprob, moved)


class Nosy(LookaheadOrder):
    """Tries every other masked position and takes the one that leaves the least uncertainty."""

    id, summary = "nosy", ""

    def candidates(self, view):
        return view.offset_R % 2 == view.offset_R[view.starts_C][view.chain_R] % 2

    def scores(self, view):
        return -np.nan_to_num(view.extras["entropy_after"], nan=99.0)


POLICIES = [
    Policy(Restless(), parse_policy("max-prob+top=2").commit),
    parse_policy("max-prob+klass=0.2:0.4:1"),
    Policy(Nosy()),
    parse_policy("forced-ar"),
    Policy(Nosy(), parse_policy("max-prob+threshold=0.3").commit),
    parse_policy("forced-ar+klass=0.15:0.5:2+spaced"),
    parse_policy("lookum-nis:3"),
    parse_policy("max-prob+lookahead-sets=4:2:3:0"),
    Policy(Nosy(), parse_policy("entropy+lookahead-sets=3:1:4:0.3").commit),
]


def model(attention="block-causal"):
    return HiddenMarkovModel(seed=5, n_states=4, block_size=6, attention=attention, incoherence=0.5)


def samples():
    generator = keyed_generator(3, "asked")
    sizes = [(5, 13), (6, 12), (0, 7)]
    return [
        EncodedSample(f"s{i}", generator.integers(0, 20, p), generator.integers(0, 20, n))
        for i, (p, n) in enumerate(sizes)
    ]


def same(columns, sample, order, slow):
    mine = (columns["sample"] == sample) & (columns["order"] == order)
    assert columns["position"][mine].tolist() == [reveal.position for reveal in slow]
    assert columns["forward"][mine].tolist() == [reveal.forward for reveal in slow]
    assert columns["n_lookahead"][mine].tolist() == [reveal.n_lookahead for reveal in slow]
    assert columns["logq"][mine] == pytest.approx([reveal.logq for reveal in slow], abs=1e-9)


@pytest.mark.parametrize("attention", KINDS)
def test_scoring_equals_the_slow_path(attention):
    chain = model(attention)
    columns = score_batch(chain, samples(), POLICIES)
    for s, sample in enumerate(samples()):
        for o, policy in enumerate(POLICIES):
            same(columns, s, o, reference_score(chain, sample, policy))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("attention", KINDS)
def test_generating_equals_the_slow_path(attention, temperature):
    chain = model(attention)
    columns = generate_batch(chain, samples(), POLICIES, GenerationSettings(11, temperature, 3)).columns
    for s, sample in enumerate(samples()):
        for o, policy in enumerate(POLICIES):
            slow = reference_generate(chain, sample, policy, 11, temperature=temperature, sample_seed=3)
            same(columns, s, o, slow)


def test_tries_are_counted_once_per_pass():
    columns = score_batch(model(), samples(), POLICIES)
    tries = columns["n_lookahead"]
    assert tries[np.isin(columns["order"], [2, 4])].sum() > 0
    assert not tries[np.isin(columns["order"], [0, 1, 3, 5])].any()
    mine = (columns["order"] == 2) & (columns["sample"] == 1) & (columns["block"] == 0)
    left, expected = set(range(6, 12)), []
    for position in columns["position"][mine].tolist():
        tried = sum(other % 2 == min(left) % 2 for other in left)
        expected.append(tried if tried > 1 else 0)  # a lone candidate needs no try
        left.remove(position)
    assert tries[mine].tolist() == expected
    assert "n_lookahead" not in score_batch(model(), samples(), POLICIES[:2])


def test_a_tried_set_costs_one_state_and_the_last_set_none():
    columns = generate_batch(model(), samples(), [POLICIES[6]], GenerationSettings(12, 0.8, 3)).columns
    mine = (columns["sample"] == 1) & (columns["block"] == 0)
    assert columns["n_lookahead"][mine].tolist() == [2, 0, 2, 0, 0, 0]
    assert columns["n_committed"][mine].tolist() == [2] * 6


def test_of_two_sets_the_one_that_leaves_less_entropy_is_drawn_more_often():
    """Three positions, sets of one of two; only position 0 tells what position 2 is."""

    def row(visible, position):
        known = position == 2 and visible[0] < 2
        return np.log([[0.999, 0.001], [0.3, 0.7], [0.5, 0.5]][0 if known else position or 1])

    texts = [EncodedSample(f"s{i}", np.zeros(0, np.int64)) for i in range(400)]
    stub = StubModel(row, vocab_size=3, block_size=3)
    shares = {}
    for heat in (0.0, 0.1, 1000.0):
        policy = parse_policy(f"forced-ar+lookahead-sets=2:1:2:{heat:g}")
        made = generate_batch(stub, texts, [policy], GenerationSettings(3, 1.0, 1, stop_at_eos=False))
        shares[heat] = float(np.mean(made.columns["position"][made.columns["step"] == 0] == 0))
    gain = (-np.log(0.5) - 0.0079) / 2  # the mean over the two positions that stay masked
    assert shares[0.0] == 1.0
    assert shares[0.1] == pytest.approx(1 / (1 + np.exp(-gain / 0.1)), abs=0.03)
    assert shares[1000.0] == pytest.approx(0.5, abs=0.1)


def test_texts_chosen_among_drawn_sets_have_no_likelihood():
    policy = parse_policy("lookum-nis")
    assert (policy.likelihood(), policy.likelihood(0.0), policy.likelihood(0.5)) == (
        "estimate", "estimate", "none",
    )  # fmt: skip
    for text in ("=9", "=2:5", "=2:2:13", "=2:2:2"):
        with pytest.raises(UserInputError, match="M must be at most 8, and POOL larger than K and at most"):
            parse_policy(f"entropy+lookahead-sets{text}")


def test_a_batch_that_is_cut_in_the_middle_keeps_its_history(forgetful):
    make, failures = forgetful
    settings = GenerationSettings(10, stop_at_eos=False)
    cut = generate_batch(make(model(), every=7), samples(), POLICIES, settings).columns
    whole = generate_batch(model(), samples(), POLICIES, settings).columns
    assert len(failures) > 1
    for name in ("position", "token_id", "forward", "n_committed", "n_lookahead"):
        assert cut[name].tolist() == whole[name].tolist()


class Curious(ConfidenceOrder):
    id, summary, needs = "curious", "", frozenset({"the future"})

    def scores(self, view):
        return view.stats.entropy


class Pretender(Curious):
    needs = frozenset({"entropy_after"})


def test_an_unknown_extra_input_is_refused():
    with pytest.raises(
        UserInputError,
        match=r"unknown extra input 'the future'; available: entropy_after, entropy_after_sets, kl_previous",
    ):
        score_batch(model(), samples(), [Policy(Curious())])
    with pytest.raises(UserInputError, match="only a look-ahead order may request it"):
        score_batch(model(), samples(), [Policy(Pretender())])
