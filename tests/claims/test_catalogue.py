"""Findings by name: built in and of plug-ins, judged together."""

from __future__ import annotations

import pytest

from orderlens import api
from orderlens.analysis.study import Options, Study
from orderlens.claims import FINDINGS, read
from orderlens.claims.checks import SUPPORTED, Check
from orderlens.claims.judge import Finding
from orderlens.errors import UnknownNameError, UserInputError
from orderlens.metrics.estimate import Estimate, Resampling
from orderlens.texts.samples import Sample


@pytest.fixture(scope="module")
def study():
    samples = [Sample(f"s{number}", "a quiet ", "morning at sea"[number:]) for number in range(8)]
    return Study(api.score("hmm", samples, "forced-ar,reverse-ar,random:0"), Options(Resampling(100)))


def test_claims_of_several_names_are_corrected_together(study, monkeypatch):
    check = Check("a number", Estimate(1.0, 0.9, 1.1, 50))
    monkeypatch.setitem(FINDINGS._objects, "mine", lambda _: Finding("mine", "It is there.", (check,)))
    alone, together = read(study, "mine"), read(study, ["fixed", "mine"])
    assert (alone.n_checks, alone.findings[0].outcome) == (1, SUPPORTED)
    assert together.n_checks > 1
    assert together.findings[0].id == "chain-rule"
    mine = together.findings[-1].checks[0].result
    assert mine.p_claim == alone.findings[0].checks[0].result.p
    assert mine.p_reading > mine.p_claim


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("decoding", "nothing was generated"),
        ("sweep", "nothing was generated"),
        ("correctness", "not graded"),
    ],
)
def test_what_the_runs_lack_is_named(study, name, why):
    with pytest.raises(UserInputError, match=f"finding '{name}': {why}"):
        read(study, [name])


def test_names_are_needed_and_known(study):
    with pytest.raises(UserInputError, match="choose from fixed, decoding, sweep, correctness"):
        read(study, [])
    with pytest.raises(UnknownNameError, match="did you mean 'sweep'"):
        read(study, "sweeps")
