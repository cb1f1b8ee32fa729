"""Verdicts follow from intervals alone, and every outcome is written the same way."""

from __future__ import annotations

import json
import math

import pytest

from orderlens.analysis.estimate import Estimate
from orderlens.replicate.verdicts import (
    MIN_PROMPTS,
    OPEN,
    REFUSED,
    SUPPORTED,
    Number,
    Verdict,
    above,
    few_prompts,
    judge,
    render_text,
    summary,
)

N = MIN_PROMPTS
YES, NO, MAYBE = Estimate(1.0, 0.5, 1.5, N), Estimate(-1.0, -1.5, -0.5, N), Estimate(0.1, -0.5, 0.7, N)


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([YES, YES], SUPPORTED),
        ([YES, MAYBE], OPEN),
        ([YES, NO], REFUSED),
        ([MAYBE, NO], REFUSED),
        ([], OPEN),
        ([Estimate(0.0, 0.0, 0.0, N)], REFUSED),
        ([Estimate(1.0, 0.5, 1.5, N - 1)], OPEN),
        ([Estimate(1.0, n=100)], OPEN),
        ([Estimate.undefined("missing")], OPEN),
    ],
)
def test_the_word_follows_from_the_intervals(checks, word):
    assert judge(checks) == word


def test_a_threshold_moves_the_whole_interval():
    moved = above(YES, 0.7)
    assert (moved.value, moved.low, moved.high) == pytest.approx((0.3, -0.2, 0.8))
    assert judge([moved]) == OPEN


def verdict(word):
    numbers = (
        Number("gap (nats)", YES, 0.49),
        Number("first", Estimate.undefined("not measured")),
        Number("second", Estimate.undefined("not measured")),
    )
    return Verdict("x", "Orders differ.", "Section 4", word, "gap above 0.", numbers, ("A remark.",))


def test_all_outcomes_are_printed_alike():
    texts = [render_text([verdict(word)]).splitlines()[2:] for word in (SUPPORTED, REFUSED, OPEN)]
    shapes = [
        [line.replace(word, "WORD") for line in text]
        for text, word in zip(texts, (SUPPORTED, REFUSED, OPEN), strict=True)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_numbers_stand_beside_the_papers_and_reasons_are_given_once():
    lines = verdict(OPEN).lines()
    assert lines[0] == "gap (nats): 1.000 [0.500, 1.500] (paper: 0.49)"
    assert lines[1] == "undefined (not measured): first; second"


def test_the_summary_counts_outcomes():
    found = summary([verdict(SUPPORTED), verdict(REFUSED), verdict(REFUSED)])
    assert found == "3 findings of the paper: 1 supported, 2 not supported by this run, 0 undetermined."


def test_records_are_plain():
    record = verdict(SUPPORTED).record()
    assert record["verdict"] == "supported"
    assert record["numbers"][0]["paper"] == 0.49
    assert math.isnan(record["numbers"][1]["value"])
    json.dumps(record)


def test_too_few_prompts_are_said():
    assert few_prompts(N) == ()
    assert "Only 3 prompts" in few_prompts(3)[0]
