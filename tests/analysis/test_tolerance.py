"""Predicted loss against temperature, recomputed from the reveals with the theory written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_ndtr


def loss(log_q, sigma):
    """Mean of −log Φ(logit(q)/(σ√2)), written out; a sure token loses nothing."""
    logits = [y - math.log(-math.expm1(y)) for y in log_q if y < 0]
    return -sum(float(log_ndtr(logit / (sigma * math.sqrt(2)))) for logit in logits) / len(log_q)


def test_losses_are_those_of_the_theory_written_out(golden_studies):
    study = golden_studies["sweep"]
    (table,) = study.tables(["tolerance"])
    reveals = study.run.reveals().to_pandas()
    rows = reveals[~reveals["is_overflow"] & reveals["temperature"].notna()]
    checked = 0
    for row in table.rows:
        temperature = float(row["temperature"])
        part = rows[rows["order"] == row["order"]]
        sigma = temperature * math.pi / math.sqrt(6)
        assert row["sigma"].value == pytest.approx(sigma, abs=1e-12)
        if not temperature:
            assert "no noise" in row["loss_own"].why
            continue
        for name, chosen in (("loss_own", temperature), ("loss_lowest", part["temperature"].min())):
            mine = part[part["temperature"] == chosen]["logq"].astype(np.float64).tolist()
            assert row[name].value == pytest.approx(loss(mine, sigma), abs=1e-9), (row["order"], name)
            checked += 1
    assert checked >= 4
