"""Every registered finding of fixed small runs of the exact control: numbers, p-values and words, stored.

To renew them after a deliberate change, run this file with ORDERLENS_RENEW_GOLDEN=1.
"""

from __future__ import annotations

import pytest

from orderlens.claims import FINDINGS, read
from orderlens.claims.checks import OUTCOMES
from orderlens.common.plaintext import plain

KINDS = {
    "fixed": "score",
    "decoding": "generate",
    "sweep": "sweep",
    "correctness": "evaluate",
    "parallel": None,
    "census": "census",
    "independence": "score",
    "locality": "states",
    "tolerance": "sweep",
}
"""Finding → the runs that it reads."""
PROSE = ("summary", "rules", "correction", "title", "claim", "rule", "remarks", "sentence", "note")


def numbers(value):
    """Return a record without its sentences."""
    if isinstance(value, dict):
        return {name: numbers(item) for name, item in value.items() if name not in PROSE}
    return [numbers(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def readings(golden_studies):
    return {name: read(golden_studies[kind], name) for name, kind in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
def test_numbers_and_words_are_the_stored_ones(name, readings, golden):
    found = plain(numbers(readings[name].record()))
    assert golden.differences("findings", name, found) == []


def test_every_finding_is_stored_and_no_file_is_left_over(golden):
    assert sorted(KINDS) == sorted(FINDINGS.names())
    files = list((golden.HERE / "findings").glob("*.json"))
    assert sorted(path.stem for path in files) == sorted(KINDS)
    assert sum(path.stat().st_size for path in files) < 60_000


@pytest.mark.parametrize("name", KINDS)
def test_a_finding_is_as_strong_as_its_weakest_check(name, readings):
    """Supported only if every check is; a defined check lies in its interval; p grows with the correction."""
    for finding in readings[name].findings:
        words = {check.outcome for check in finding.checks}
        assert words <= set(OUTCOMES)
        assert (finding.outcome == OUTCOMES[0]) is (words == {OUTCOMES[0]})
        for check in finding.checks:
            cell, outcome = check.estimate, check.result
            if cell.low == cell.low and cell.is_defined:
                assert cell.low - 1e-12 <= cell.value <= cell.high + 1e-12, check.label
            known = [p for p in (outcome.p, outcome.p_claim, outcome.p_reading) if p == p and p is not None]
            assert known == sorted(known), check.label
