"""The fast scorer against the slow one, and against the exact joint."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.decode.reference import reference_score
from orderlens.decode.score import distinct_states, score_batch
from orderlens.errors import ModelOutputError, UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

ALL = parse_policies(
    "forced-ar,reverse-ar,random,random:3,max-prob,top-margin,entropy,oracle-max-q,oracle-margin,oracle-min-q"
)


def pairs(samples, one_of):
    """Yield every ``one_of``-th pair of sample and order; all pairs are in the batch."""
    for s, sample in enumerate(samples):
        for o, order in enumerate(ALL):
            if (s + o) % one_of == 0:
                yield s, sample, o, order


def trace(columns, sample, order):
    mine = (columns["sample"] == sample) & (columns["order"] == order)
    return {name: values[mine] for name, values in columns.items()}


def transformer_samples(samples):
    """Ids of the test network. An all-masked window without prompt looks the same at every position (rotary
    encoding only enters through products with something visible), so adaptive orders would break exact ties
    by rounding: every prompt gets a token."""
    return [EncodedSample(x.id, np.append(x.prompt % 48 + 2, 5), x.target % 48 + 2) for x in samples]


@pytest.mark.parametrize("anchor", ["zero", "prompt"])
def test_fast_equals_slow_on_hmm(hmm, mixed_samples, anchor):
    columns = score_batch(hmm, mixed_samples, ALL, anchor)
    for s, sample, o, order in pairs(mixed_samples, 2):
        fast, slow = trace(columns, s, o), reference_score(hmm, sample, order, anchor)
        assert fast["position"].tolist() == [item.position for item in slow]
        assert np.abs(fast["logq"] - [item.logq for item in slow]).max() < 1e-9
        assert fast["token_id"].tolist() == [item.token for item in slow]


@pytest.mark.needs_torch
@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("anchor", ["zero", "prompt"])
def test_fast_equals_slow_on_a_transformer(make_transformer, mixed_samples, attention, anchor):
    model = make_transformer(attention)
    samples = transformer_samples(mixed_samples)
    columns = score_batch(model, samples, ALL, anchor)
    for s, sample, o, order in pairs(samples, 3):
        fast, slow = trace(columns, s, o), reference_score(model, sample, order, anchor)
        assert fast["position"].tolist() == [item.position for item in slow]
        assert np.abs(fast["logq"] - [item.logq for item in slow]).max() < 5e-5


def test_every_order_gives_the_joint_while_variances_differ(hmm, mixed_samples):
    columns = score_batch(hmm, mixed_samples, ALL)
    for s, sample in enumerate(mixed_samples):
        whole = np.concatenate([sample.prompt, sample.target])
        truth = hmm.joint_log_prob(whole) - hmm.joint_log_prob(sample.prompt)
        sums = [trace(columns, s, o)["logq"].sum() for o in range(len(ALL))]
        assert np.abs(np.array(sums) - truth).max() / len(sample.target) < 1e-9
    longest = [trace(columns, 3, o)["logq"].var() for o in range(len(ALL))]
    assert max(longest) - min(longest) > 0.05


def test_incoherent_model_breaks_the_chain_rule(mixed_samples):
    model = HiddenMarkovModel(block_size=8, incoherence=0.5)
    columns = score_batch(model, mixed_samples, ALL)
    sums = [trace(columns, 3, o)["logq"].sum() for o in range(len(ALL))]
    assert (max(sums) - min(sums)) / 30 > 0.05


@pytest.mark.parametrize("specs", ["forced-ar,random", "oracle-min-q,max-prob,forced-ar"])
def test_results_do_not_depend_on_the_batch(hmm, mixed_samples, specs):
    orders = parse_policies(specs)
    together = score_batch(hmm, mixed_samples, orders)
    shuffled = score_batch(hmm, mixed_samples[::-1], orders[::-1])
    last = len(mixed_samples) - 1
    for s, sample in enumerate(mixed_samples):
        for o, order in enumerate(orders):
            alone = score_batch(hmm, [sample], [order])
            for other in (alone, trace(shuffled, last - s, len(orders) - 1 - o)):
                here = trace(together, s, o)
                assert here["position"].tolist() == other["position"].tolist()
                assert np.abs(here["logq"] - other["logq"]).max() < 1e-12


def test_static_wave_equals_stepwise_evaluation(hmm, mixed_samples):
    """Static orders alone run in one wave; together with an adaptive order they run pass by pass."""
    alone = score_batch(hmm, mixed_samples, parse_policies("forced-ar"))
    beside = score_batch(hmm, mixed_samples, parse_policies("forced-ar,entropy"))
    mine = beside["order"] == 0
    for name in ("position", "token_id", "step", "block", "n_tied"):
        assert np.array_equal(alone[name], beside[name][mine])
    assert np.abs(alone["logq"] - beside["logq"][mine]).max() < 1e-12


def test_trace_shape(hmm, mixed_samples):
    columns = score_batch(hmm, mixed_samples, ALL)
    for s, sample in enumerate(mixed_samples):
        for o in range(len(ALL)):
            one = trace(columns, s, o)
            first = len(sample.prompt)
            assert one["step"].tolist() == list(range(len(sample.target)))
            assert sorted(one["position"].tolist()) == list(range(first, first + len(sample.target)))
            assert one["block"].tolist() == ((one["position"] // 8) - first // 8).tolist()
            assert (np.diff(one["block"]) >= 0).all()
            assert (one["logq"] <= one["max_logprob"] + 1e-12).all()
            at_top = one["token_id"] == one["top_token"]
            assert np.allclose(one["logq"][at_top], one["max_logprob"][at_top])
            assert (one["competitor_logprob"][at_top] == one["second_logprob"][at_top]).all()
            assert (one["competitor_logprob"][~at_top] == one["max_logprob"][~at_top]).all()


def test_equal_states_are_evaluated_once(hmm, mixed_samples, monkeypatch):
    counted = []
    from orderlens.models.hmm import HmmSession

    plain = HmmSession.evaluate
    monkeypatch.setattr(
        HmmSession,
        "evaluate",
        lambda self, states: counted.append(len(states.slots_N)) or plain(self, states),
    )
    one_block = [EncodedSample("a", np.arange(8), np.arange(8))]
    score_batch(hmm, one_block, parse_policies("forced-ar,reverse-ar,random"))
    # 3 orders × 8 steps, but the all-masked state is shared by all three.
    assert counted == [3 * 8 - 2]


def test_distinct_states_keeps_blocks_apart():
    visible = np.array([[1, 0], [1, 0], [0, 1], [1, 0]], bool)
    first, state = distinct_states(np.array([0, 0, 0, 1]), visible)
    assert len(first) == 3
    assert state[0] == state[1] != state[2] != state[3]


def test_adjacent_swaps_telescope_on_the_incoherent_model():
    """log P_π − log P_π' is the sum of circulations along a chain of adjacent swaps."""
    model = HiddenMarkovModel(seed=1, block_size=6, incoherence=0.8)
    tokens = [3, 7, 1, 0, 22, 9]

    def log_p(shown: frozenset[int], i: int) -> float:
        window = [token if j in shown else model.mask_id for j, token in enumerate(tokens)]
        return float(model.log_probs(window)[i, tokens[i]])

    def path_sum(path: list[int]) -> float:
        return sum(log_p(frozenset(path[:t]), i) for t, i in enumerate(path))

    path, goal = [0, 1, 2, 3, 4, 5], [4, 0, 5, 2, 1, 3]
    gap, total = path_sum(path) - path_sum(goal), 0.0
    for place, wanted in enumerate(goal):
        at = path.index(wanted)
        while at > place:
            shown, i, j = frozenset(path[: at - 1]), path[at - 1], path[at]
            total += (log_p(shown, i) + log_p(shown | {i}, j)) - (log_p(shown, j) + log_p(shown | {j}, i))
            path[at - 1], path[at] = j, i
            at -= 1
    assert path == goal
    assert abs(gap) > 0.1
    assert total == pytest.approx(gap, abs=1e-10)
    columns = score_batch(model, [EncodedSample("a", np.empty(0, np.int64), np.array(tokens))], ALL[:1])
    assert columns["logq"].sum() == pytest.approx(path_sum([0, 1, 2, 3, 4, 5]), abs=1e-10)


def test_impossible_target_is_reported(hmm):
    eos = hmm.tokenizer.eos_id
    with pytest.raises(ModelOutputError, match="'x': the model gives the target token at position 2"):
        score_batch(hmm, [EncodedSample("x", np.array([1, eos]), np.array([3]))], ALL[:1])


def test_too_long_sample_is_refused(hmm):
    sample = EncodedSample("long", np.zeros(hmm.max_positions, np.int64), np.zeros(3, np.int64))
    with pytest.raises(UserInputError, match=r"'long'.*positions"):
        score_batch(hmm, [sample], ALL[:1])
