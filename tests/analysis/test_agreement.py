"""How alike the paths of two orders are."""

from __future__ import annotations

import pytest

from orderlens.analysis import Study
from orderlens.analysis.tables_generation import agreement_matrix


def test_agreement_matrix_is_symmetric(scored, builders):
    study = Study(scored, builders.QUICK)
    matrix = agreement_matrix(study, study.scored)
    assert matrix["forced-ar"]["forced-ar"].value == pytest.approx(1.0)
    assert matrix["forced-ar"]["random"] == matrix["random"]["forced-ar"]
    assert abs(matrix["forced-ar"]["random"].value) < 0.4


def test_agreement_looks_at_a_bounded_number_of_samples(scored, monkeypatch, builders):
    monkeypatch.setattr("orderlens.analysis.tables_generation.MAX_SAMPLES", 5)
    study = Study(scored, builders.QUICK)
    assert agreement_matrix(study, study.scored)["forced-ar"]["max-prob"].n == 5
