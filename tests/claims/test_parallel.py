"""Findings on sets: supported where the truth is known, none where every pass commits one token."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.analysis import Options, Resampling, Study
from orderlens.analysis.frontier import FrontierPoint
from orderlens.claims import read
from orderlens.claims.parallel import _is_rival
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import Estimate
from orderlens.models.hmm import HiddenMarkovModel

ONE = Estimate(1.0)
QUICK = Options(resampling=Resampling(reps=400))


@pytest.fixture(scope="module")
def reading():
    model = HiddenMarkovModel(block_size=16)
    written = ol.generate(
        model, [ol.Sample(str(i), "") for i in range(40)], "forced-ar", max_new_tokens=32, temperature=1
    )
    rows = written.outputs().to_arrow().to_pylist()
    samples = [ol.Sample(row["sample_id"], [], row["token_ids"]) for row in rows]
    orders = ["forced-ar", "forced-ar+top=4", "forced-ar+top=16", "forced-ar+spaced=4"]
    return read(Study(ol.score(model, samples, orders, couplings=99), QUICK), "parallel")


def test_on_the_chains_own_texts_sets_cost_coupling_and_lower_var(reading) -> None:
    words = {finding.id: finding.outcome for finding in reading.findings}
    for name in ("sets-cost-likelihood", "loss-is-coupling", "var-falls-with-sets"):
        assert words[name] == "supported", name


def test_coupling_is_the_whole_loss(reading) -> None:
    """So coupling − ½ loss is half of the loss."""
    by_id = {finding.id: finding for finding in reading.findings}
    for cost, share in zip(
        by_id["sets-cost-likelihood"].checks, by_id["loss-is-coupling"].checks, strict=True
    ):
        assert share.estimate.value == pytest.approx(cost.estimate.value / 2, abs=1e-9)


def test_a_rule_of_the_ladders_order_is_compared_at_equal_passes(reading) -> None:
    (finding,) = [item for item in reading.findings if item.id == "adaptive-likelihood"]
    assert [check.where for check in finding.checks] == ["forced-ar+spaced=4"]


def test_without_couplings_the_share_is_left_open() -> None:
    samples = [ol.Sample(str(i), "hello", " there"[: 3 + i % 3]) for i in range(8)]
    study = Study(ol.score("hmm", samples, ["max-prob", "max-prob+top=2"]), QUICK)
    found = {finding.id: finding for finding in read(study, "parallel").findings}
    assert found["loss-is-coupling"].outcome == "left open"
    assert "--couplings" in found["loss-is-coupling"].checks[0].estimate.why


def test_one_token_per_pass_is_no_case() -> None:
    study = Study(ol.score("hmm", [ol.Sample("a", "hello", "there")], ["max-prob"]), QUICK)
    with pytest.raises(UserInputError, match="finding 'parallel': every policy reveals one token per pass"):
        read(study, "parallel")


def test_rivals_have_the_order_of_the_ladder_and_another_rule() -> None:
    ladder = ["max-prob", "max-prob+top=2", "max-prob+top=4"]

    def rival(order: str, tokens: float = 2.5, gain: Estimate = ONE) -> bool:
        return _is_rival(FrontierPoint(order, ONE, Estimate(tokens), ONE, gain), ladder)

    assert rival("max-prob+threshold=0.9")
    assert not rival("max-prob+top=2"), "a rung"
    assert not rival("forced-ar+threshold=0.9"), "another order"
    assert not rival("max-prob:select=argmax"), "no rule"
    assert not rival("max-prob+steps=6"), "known counts"
    assert not rival("max-prob+schedule=4:losses.json"), "known counts"
    assert rival("max-prob+p2")
    assert not rival("max-prob+threshold=0.9", tokens=1.0), "one token per pass"
    assert not rival("max-prob+threshold=0.9", gain=Estimate.undefined("outside the ladder"))
    assert not _is_rival(FrontierPoint("max-prob+top=2", ONE, Estimate(2.0), ONE, ONE), [])
