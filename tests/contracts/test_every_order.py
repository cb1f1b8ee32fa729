"""Every registered order obeys its kind's contract: new entries are tested without writing a test."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.common.rng import keyed_generator
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.reference import reference_score
from orderlens.decode.score import score_batch
from orderlens.errors import UserInputError
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules import parse_order
from orderlens.rules.catalogue import ORDERS
from orderlens.rules.orders import ConfidenceOrder, OracleOrder, StaticOrder
from orderlens.rules.stats import PositionStats, TargetStats
from orderlens.rules.view import StepView
from orderlens.texts.samples import EncodedSample


@pytest.fixture(params=ORDERS.names())
def order(request):
    return parse_order(request.param)


def random_stats(n):
    generator = keyed_generator(0, "order-contract", n)
    top = np.log(generator.uniform(0.3, 1, n))
    second = top + np.log(generator.uniform(0.01, 0.9, n))
    stats = PositionStats(generator.integers(0, 9, n), top, second, generator.uniform(0, 2, n), top - 1)
    return stats, TargetStats(stats, second, top)


def view_for(order, seen, offsets=None):
    """The view of one chain with an answer to everything that the order asks for."""
    view = StepView.of(seen, offsets)
    entropy = getattr(seen, "positions", seen).entropy
    return view.with_extras(
        {"planned_passes": np.full(len(seen), 9.0)} | dict.fromkeys(order.needs, entropy / 3)
    )


def test_it_describes_itself(order):
    assert order.id in ORDERS.names()
    assert order.summary
    assert parse_order(order.spec).spec == order.spec


def test_scores_or_paths_have_the_right_shape(order):
    stats, targeted = random_stats(12)
    if isinstance(order, StaticOrder):
        assert sorted(order.path(12, "a", 0).tolist()) == list(range(12))
        return
    assert isinstance(order, ConfidenceOrder | OracleOrder)
    scores = order.scores(view_for(order, targeted if isinstance(order, OracleOrder) else stats))
    assert scores.shape == (12,)
    assert np.isfinite(scores).all()


def test_scores_of_a_position_do_not_depend_on_the_others(order):
    if isinstance(order, StaticOrder):
        pytest.skip("a static order has no scores")
    if order.id == "learned":
        pytest.skip("its scores depend on the distance to revealed positions")
    stats, targeted = random_stats(12)
    seen = targeted if isinstance(order, OracleOrder) else stats
    few = np.array([2, 5, 7])
    assert np.array_equal(
        order.scores(view_for(order, seen))[few], order.scores(view_for(order, seen.take(few), few))
    )


def test_it_scores_the_exact_model_exactly(order):
    model = HiddenMarkovModel(seed=5, n_states=4, block_size=6)
    tokens = keyed_generator(1, "order-contract").integers(0, 20, 22)
    sample = EncodedSample("x", tokens[:5], tokens[5:])
    columns = score_batch(model, [sample], [order])
    truth = model.joint_log_prob(tokens) - model.joint_log_prob(tokens[:5])
    assert columns["logq"].sum() == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("attention", ["block-causal", "full"])
def test_it_takes_the_path_of_the_slow_decoder(order, attention):
    model = HiddenMarkovModel(seed=5, n_states=4, block_size=5, incoherence=0.5, attention=attention)
    tokens = keyed_generator(2, "order-contract").integers(0, 20, (2, 13))
    samples = [EncodedSample(f"s{i}", row[: 3 + i], row[3 + i :]) for i, row in enumerate(tokens)]
    columns = score_batch(model, samples, [order])
    for s, sample in enumerate(samples):
        slow = reference_score(model, sample, order)
        mine = columns["sample"] == s
        assert columns["position"][mine].tolist() == [reveal.position for reveal in slow]
        assert columns["logq"][mine] == pytest.approx([reveal.logq for reveal in slow], abs=1e-9)


def test_it_generates_unless_it_needs_a_target(order, hmm):
    sample, settings = EncodedSample("x", np.arange(5)), GenerationSettings(11, stop_at_eos=False)
    if isinstance(order, OracleOrder):
        with pytest.raises(UserInputError, match="needs the target"):
            generate_batch(hmm, [sample], [order], settings)
        return
    columns = generate_batch(hmm, [sample], [order], settings).columns
    assert sorted(columns["position"].tolist()) == list(range(5, 16))
