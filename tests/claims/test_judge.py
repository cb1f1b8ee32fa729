"""One meaning of each outcome: evidence, evidence of absence, or neither, after the correction."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from orderlens.claims.checks import (
    NOT_SUPPORTED,
    OPEN,
    OUTCOMES,
    SUPPORTED,
    Check,
    CheckResult,
    ContextNumber,
    negated,
    p_of_sign,
)
from orderlens.claims.judge import Finding, Reading, combined, judge
from orderlens.metrics.estimate import Estimate

N = 40


def estimate(value, half, n=N):
    return Estimate(value, value - half, value + half, n)


def word_of(check):
    return judge([Finding("x", "A claim.", (check,))]).findings[0].outcome


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (Check("clear", estimate(1.0, 0.5)), SUPPORTED),
        (Check("wrong side", estimate(-1.0, 0.5)), NOT_SUPPORTED),
        (Check("not significant", estimate(0.1, 0.5)), OPEN),
        (Check("not significant, but only because of the data", estimate(0.0, 0.5), margin=0.1), OPEN),
        (Check("inside the margin", estimate(0.0, 0.05), margin=0.1), NOT_SUPPORTED),
        (Check("there, but too small to count", estimate(0.05, 0.02), margin=0.1), NOT_SUPPORTED),
        (Check("above another bar", estimate(1.0, 0.2), above=0.7), SUPPORTED),
        (Check("not clearly above it", estimate(1.0, 0.5), above=0.7), OPEN),
        (Check("in the band", estimate(0.2, 0.5), above=-1, below=1), SUPPORTED),
        (Check("outside the band", estimate(-3.0, 0.5), above=-1, below=1), NOT_SUPPORTED),
        (Check("across its end", estimate(1.0, 0.5), above=-1, below=1), OPEN),
        (Check("too few", estimate(1.0, 0.1, n=5)), OPEN),
        (Check("needs more", estimate(1.0, 0.1), min_n=50), OPEN),
        (Check("no interval", Estimate(1.0, n=N)), OPEN),
        (Check("nothing", Estimate.undefined("missing")), OPEN),
        (Check("a test says no", estimate(1.0, 0.1), p=0.2), OPEN),
        (Check("a test says yes, the interval does not", estimate(1.0, 1.5), p=0.001), OPEN),
        (Check("no spread at all", estimate(1.0, 0.0)), SUPPORTED),
        (Check("no spread, few texts", estimate(1.0, 0.0, n=6), p=None), SUPPORTED),
        (Check("at the bar without spread", estimate(0.0, 0.0)), OPEN),
    ],
    ids=lambda value: value.label if isinstance(value, Check) else value,
)
def test_the_word_follows_from_the_interval(check, outcome):
    assert word_of(check) == outcome


def test_a_claim_needs_all_its_checks():
    assert combined([SUPPORTED, SUPPORTED]) == SUPPORTED
    assert combined([SUPPORTED, OPEN]) == OPEN
    assert combined([OPEN, NOT_SUPPORTED]) == NOT_SUPPORTED
    assert combined([]) == OPEN


def test_small_samples_need_more_than_a_normal_tail():
    few, many = (Check("", estimate(1.0, 0.9, n)).p_values(0.95)[0] for n in (6, 10_000))
    assert many == pytest.approx(0.0294, abs=1e-3)
    assert few > 0.07
    assert p_of_sign(estimate(-1.0, 0.9, 10_000)) == pytest.approx(many)


def test_one_lucky_check_among_many_is_no_support_and_is_said():
    """Over its own claim the lucky one would do; over the reading it does not."""
    lucky = Finding("lucky", "A claim.", (Check("x", estimate(1.0, 0.8)),))
    others = [Finding(f"o{n}", "Another.", (Check("x", estimate(0.0, 0.8)),)) for n in range(19)]
    (alone,) = judge([lucky]).findings
    assert alone.outcome == SUPPORTED
    reading = judge([lucky, *others])
    (check,) = reading.findings[0].checks
    assert check.outcome == OPEN
    assert check.result.p == check.result.p_claim < 0.05 <= check.result.p_reading
    assert "Holm p over all checks" in reading.findings[0].parts()[0].text()
    assert "Holm p over all checks" in reading.findings[0].sentence()
    assert reading.n_checks == 20
    assert "20 checks were made" in reading.sentence()


def test_absence_is_corrected_as_well():
    absent = Finding("absent", "A claim.", (Check("x", estimate(0.0, 0.09), margin=0.1),))
    others = [Finding(f"o{n}", "Another.", (Check("x", estimate(0.0, 0.5), margin=0.1),)) for n in range(19)]
    assert judge([absent]).findings[0].outcome == NOT_SUPPORTED
    assert judge([absent, *others]).findings[0].outcome == OPEN


def test_the_same_claim_about_several_tasks_is_one_family():
    checks = (Check("x", estimate(1.0, 0.8)),)
    reading = judge([Finding("a", "A claim.", checks, task=task) for task in ("s", "t")])
    outcome = reading.findings[0].checks[0].result
    assert outcome.p_claim == pytest.approx(2 * outcome.p)


def finding(outcome):
    checks = (
        Check("gap (nats)", estimate(1.0, 0.5), paper=0.49, result=CheckResult(outcome)),
        Check("first", Estimate.undefined("not measured"), result=CheckResult(outcome)),
    )
    numbers = (ContextNumber("second", Estimate.undefined("not measured")),)
    return Finding("some-gap", "Orders differ.", checks, "Section 4", "", "gap above 0.", numbers, ("Note.",))


def test_all_outcomes_are_printed_alike():
    texts = [Reading((finding(outcome),)).text().splitlines()[2:] for outcome in OUTCOMES]
    shapes = [
        [line.replace(outcome, "WORD").replace(outcome.capitalize(), "WORD") for line in text[:7]]
        for text, outcome in zip(texts, OUTCOMES, strict=True)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_numbers_stand_beside_the_papers_and_reasons_are_given_once():
    lines = finding(OPEN).lines()
    assert lines[0] == "gap (nats): 1.000 [0.500, 1.500] (paper: 0.49)"
    assert lines[1] == "undefined (not measured): first; second"


def test_a_line_names_its_place_and_a_heading_its_task():
    checks = (
        Check("loss", estimate(1.0, 0.5), where="max-prob+top=2"),
        Check("loss", Estimate.undefined("not measured"), where="max-prob+top=4"),
    )
    item = replace(finding(OPEN), checks=checks, numbers=(), task="arith")
    assert item.lines() == [
        "max-prob+top=2: loss: 1.000 [0.500, 1.500]",
        "undefined (not measured): max-prob+top=4: loss",
    ]
    assert item.heading == "arith: Orders differ.  [Section 4]"


def test_records_are_plain_and_complete():
    reading = judge([replace(finding(OPEN), checks=(Check("gap", estimate(1.0, 0.5), margin=0.1),))])
    record = reading.record()
    json.dumps(record)
    assert record["correction"] == {"claim": "Holm", "reading": "Holm", "decides": "reading", "alpha": 0.05}
    assert record["counts"] == {SUPPORTED: 1, NOT_SUPPORTED: 0, OPEN: 0}
    (item,) = record["findings"]
    assert item["title"] == "Some gap"
    (check,) = item["checks"]
    assert check["interval"] == [0.5, 1.5]
    assert check["p"] < 0.01
    assert "above 0; up to 0.1 is too small to count; at least 6" in check["rule"]
    assert check["outcome"] == SUPPORTED
    assert math.isnan(item["numbers"][0]["estimate"])


def test_places_are_judged_one_by_one():
    checks = (
        Check("x", estimate(1.0, 0.1), where="a"),
        Check("x", estimate(0.0, 0.5), where="b"),
        Check("y", estimate(1.0, 0.1), where="a"),
    )
    (item,) = judge([Finding("x", "A claim.", checks)]).findings
    assert [(part.where, part.outcome) for part in item.parts()] == [("a", SUPPORTED), ("b", OPEN)]
    assert [part.where for part in item.at(OPEN)] == ["b"]


def test_a_sign_can_be_changed():
    cell = negated(Estimate(1.0, 0.5, 2.0, N, 3, "a caution"))
    assert (cell.value, cell.low, cell.high, cell.n, cell.n_undefined) == (-1.0, -2.0, -0.5, N, 3)
