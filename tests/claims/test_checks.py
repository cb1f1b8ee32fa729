"""The p-values of one check, against closed forms of Student's t with one and two degrees of freedom."""

from __future__ import annotations

import math

import pytest

from orderlens.claims.checks import (
    NOT_SUPPORTED,
    OPEN,
    SUPPORTED,
    Check,
    CheckResult,
    ContextNumber,
    at_place,
    p_of_sign,
)
from orderlens.claims.judge import Finding, FindingPart, judge
from orderlens.metrics.estimate import Estimate

Z95 = 1.959963984540054


def p_of(distance, half, n, z=Z95):
    """Two-sided p of t = distance / half × z with n − 1 degrees of freedom, n = 2 or 3."""
    t = distance / half * z
    return 1 - 2 * math.atan(t) / math.pi if n == 2 else 1 - t / math.sqrt(2 + t * t)


def check(value, low, high, n=3, **more):
    return Check("x", Estimate(value, low, high, n), min_n=2, **more)


@pytest.mark.parametrize(
    ("item", "here", "elsewhere"),
    [
        (check(1.0, 0.5, 3.0), p_of(1.0, 0.5, 3), 1.0),
        (check(1.0, 0.5, 3.0, n=2), p_of(1.0, 0.5, 2), 1.0),
        (check(1.0, 0.5, 3.0, above=0.4), p_of(0.6, 0.5, 3), 1.0),
        (check(-1.0, -3.0, -0.5), 1.0, p_of(1.0, 0.5, 3)),
        (check(0.2, 0.1, 0.6, margin=1.0), p_of(0.2, 0.1, 3), p_of(0.8, 0.4, 3)),
        (check(0.2, 0.1, 0.6, above=0.1, margin=1.0), p_of(0.1, 0.1, 3), p_of(0.9, 0.4, 3)),
        # a band: the claim needs both ends, absence one of them
        (check(0.2, 0.0, 0.6, above=-1, below=1), max(p_of(1.2, 0.2, 3), p_of(0.8, 0.4, 3)), 1.0),
        (check(2.0, 1.5, 2.2, above=-1, below=1), 1.0, p_of(1.0, 0.5, 3)),
        (check(-2.0, -2.5, -1.8, above=-1, below=1), 1.0, p_of(1.0, 0.2, 3)),
        (check(0.9, 0.5, 1.2, above=-1, below=1, margin=0.3), p_of(0.1, 0.3, 3), p_of(0.2, 0.4, 3)),
        # at the bar
        (check(0.0, -1.0, 1.0), 1.0, 1.0),
        # no spread on the side of the bar: half of the whole interval; no spread at all: a sign test
        (check(1.0, 1.0, 2.0), p_of(1.0, 0.5, 3), 1.0),
        (check(1.0, 1.0, 1.0, n=9), 2.0**-8, 1.0),
        (check(1.0, 1.0, 1.0, n=1, p_absent=0.5), math.nan, math.nan),
        # with separate tests
        (check(1.0, 0.5, 3.0, p=0.7), 0.7, 1.0),
        (check(1.0, 0.5, 3.0, p_absent=0.03), p_of(1.0, 0.5, 3), 0.03),
    ],
)
def test_p_values(item, here, elsewhere):
    assert item.p_values(0.95) == pytest.approx((here, elsewhere), abs=1e-9, nan_ok=True)


def test_another_level_reads_the_interval_otherwise():
    z80 = 1.2815515655446004
    assert check(1.0, 0.5, 3.0).p_values(0.8)[0] == pytest.approx(p_of(1.0, 0.5, 3, z80))


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_the_sign_of_a_number(value):
    cell = Estimate(value, min(value / 2, 3 * value), max(value / 2, 3 * value), 3)
    assert p_of_sign(cell) == pytest.approx(p_of(1.0, 0.5, 3))


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (Estimate(1.0, 0.5, 2.0, 6), ""),
        (Estimate(1.0, 0.5, 2.0, 5), "5 of at least 6 texts or items"),
        (Estimate(1.0, n=9), "no interval"),
        (Estimate(1.0, 0.5, math.inf, 9), "no interval"),
        (Estimate.undefined("not measured"), "not measured"),
        (Estimate(math.nan), "no value"),
    ],
)
def test_when_nothing_can_be_decided(cell, why):
    item = Check("x", cell)
    assert item.too_few() == why
    assert math.isnan(item.p_values(0.95)[0]) is bool(why)


@pytest.mark.parametrize(
    ("item", "fits"),
    [
        (check(1.0, 0.1, 2.0), True),
        (check(1.0, 0.0, 2.0), False),
        (check(0.0, -0.5, 0.5, above=-1, below=1), True),
        (check(0.0, -0.5, 1.0, above=-1, below=1), False),
    ],
)
def test_the_whole_interval_must_lie_inside(item, fits):
    assert item.fits() is fits


def test_rules_and_numbers_in_words():
    assert check(0, 0, 0).rule == "the interval lies above 0; at least 2 texts or items"
    band = check(0, 0, 0, above=-0.5, below=0.5, margin=0.1)
    assert band.rule == (
        "the interval lies between -0.5 and 0.5; up to -0.4, or from 0.4 on, is too small to count; "
        "at least 2 texts or items"
    )
    assert check(0, 0, 0, margin=0.1).rule.split("; ")[1] == "up to 0.1 is too small to count"
    number = ContextNumber(
        "gap (nats)", Estimate(1.23456, 1.0, 1.5, 9, 2, "2 without text"), paper="<1", digits=2
    )
    assert number.text() == "gap (nats): 1.23 [1.00, 1.50] (2 undefined) (paper: <1)"
    assert number.record() == {
        "label": "gap (nats)",
        "estimate": 1.23456,
        "interval": [1.0, 1.5],
        "n": 9,
        "n_undefined": 2,
        "note": "2 without text",
        "paper": "<1",
    }
    assert [item.where for item in at_place("here", (check(0, 0, 0), check(1, 1, 1)))] == ["here", "here"]


FITS, MISSES = Estimate(1.0, 0.5, 2.0, 40), Estimate(1.0, -0.5, 2.0, 40)
LOST, FAR = CheckResult(OPEN, 0.01, 0.01, 0.2), CheckResult(OPEN, 0.3, 0.3, 0.9)


@pytest.mark.parametrize(
    ("outcome", "checks", "note"),
    [
        (OPEN, [(FITS, LOST)], "; Holm p over all checks = 0.2"),
        (
            OPEN,
            [(FITS, LOST), (FITS, CheckResult(OPEN, 0.02, 0.02, 0.4))],
            "; Holm p over all checks = 0.4",
        ),
        (OPEN, [(FITS, LOST), (FITS, FAR)], "; Holm p over all checks = 0.2"),
        (OPEN, [(FITS, FAR)], ""),
        (OPEN, [(MISSES, LOST)], ""),
        (OPEN, [(FITS, CheckResult(OPEN, 0.01, 0.01, 0.04))], ""),
        (NOT_SUPPORTED, [(FITS, LOST)], ""),
    ],
)
def test_a_part_says_where_the_correction_prevented_an_outcome(outcome, checks, note):
    made = tuple(Check("x", cell, result=result) for cell, result in checks)
    shown = "; ".join(item.text() for item in made)
    assert FindingPart("", outcome, made).text() == shown + note
    assert FindingPart("t", outcome, made).text().startswith("t: x: 1.000 [")


def test_a_part_without_numbers_gives_its_reasons_once():
    none = Check("x", Estimate.undefined("not measured"), remark="as ever")
    assert FindingPart("t", OPEN, (none, none)).text() == "t: as ever; not measured"


def test_sentences_count_checks_and_give_reasons():
    checks = (
        check(1.0, 0.9, 1.1, n=40),
        check(0.0, -1.0, 1.0, n=40),
        Check("few", Estimate(1.0, 0.9, 1.1, 2)),
    )
    reading = judge([Finding("a-b", "A claim.", checks), Finding("c", "Nothing.", ())])
    first, second = reading.findings
    assert first.sentence() == (
        "Left open: 3 checks, 1 supported, 2 left open (2 of at least 6 texts or items)."
    )
    assert second.sentence() == "Left open: 0 checks, none made."
    assert (first.title, reading.n_checks, reading.n_undefined) == ("A b", 2, 1)
    assert reading.counts() == {SUPPORTED: 0, NOT_SUPPORTED: 0, OPEN: 2}
    assert reading.sentence().startswith(
        "2 findings: 0 supported, 0 not supported, 2 left open. "
        "2 checks were made (1 more could not be made). "
    )
    assert "1 check was made." in judge([Finding("a", "A.", checks[:1])]).sentence()


def test_the_correction_over_a_claim_is_not_that_over_the_reading():
    """Holm of (p, p) is 2p for both; over three checks 3p for all of them."""
    item = check(1.0, 0.5, 3.0)
    p = p_of(1.0, 0.5, 3)
    reading = judge([Finding("a", "A.", (item, item)), Finding("b", "B.", (item,))])
    found = [c.result for f in reading.findings for c in f.checks]
    assert [o.p for o in found] == pytest.approx([p] * 3)
    assert [o.p_claim for o in found] == pytest.approx([2 * p, 2 * p, p])
    assert [o.p_reading for o in found] == pytest.approx([min(1, 3 * p)] * 3)
    assert [o.p_absent for o in found] == [1.0] * 3
