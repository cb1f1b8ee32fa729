"""``theory check``: each claim is computed, and the outcomes are those of the audit."""

from __future__ import annotations

import pytest

from orderlens.claims.audit import CLAIM_COUNT, Claim, check_claims, model

FAILING = {
    "vocabulary-size",
    "single-competitor-is-conservative",
    "effective-noise-scale",
    "uniform-above-sigma0",
    "second-order-sign",
    "variance-orders",
    "random-gap",
    "structured-gap",
    "paired-tests",
    "perplexity-agreement",
}
INCOMPLETE = {"small-sigma-step", "second-order-range", "spearman-order"}


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.name: claim for claim in check_claims()}


def test_names_are_unique_and_complete(claims) -> None:
    assert len(claims) == CLAIM_COUNT >= 30
    assert all(claim.paper and claim.ours and claim.statement for claim in claims.values())


def test_what_stands(claims) -> None:
    assert {name for name, claim in claims.items() if claim.standing == "fails"} == FAILING
    assert {name for name, claim in claims.items() if claim.standing == "incomplete"} == INCOMPLETE


def test_numbers_of_the_specification(claims) -> None:
    wanted = {
        ("critical-sigma", "sigma0"): (1.052582699429131, 1e-12),
        ("critical-sigma", "q"): (0.676470951326349, 1e-9),
        ("largest-q-logit", "maximum"): (0.278464542761, 1e-11),
        ("largest-q-logit", "place"): (0.217811705720, 1e-7),
        ("upper-half-bound", "bound"): (0.564189583548, 1e-11),
        ("margin-at-0.1", "smallest_ratio"): (3.505194, 1e-6),
        ("margin-at-0.1", "q"): (0.226135, 1e-5),
        ("single-competitor-is-conservative", "f1"): (0.0187, 5e-5),
        ("single-competitor-is-conservative", "f2"): (0.0142, 5e-5),
        ("uniform-above-sigma0", "uneven_2"): (0.346152205, 1e-9),
        ("uniform-above-sigma0", "even_1.1"): (0.465417653, 1e-9),
        ("second-order-sign", "curvature"): (0.129098923768, 1e-10),
        ("variance-orders", "log_a_one"): (-3.946, 5e-4),
        ("variance-orders", "log_a_two"): (-0.292, 5e-4),
        ("random-gap", "smallest"): (2.62, 1e-9),
        ("random-gap", "largest"): (35.16, 1e-9),
        ("structured-gap", "spread_IFEval"): (3.15, 1e-9),
        ("vocabulary-size", "sigma0_configured"): (2.14360, 6e-6),
    }
    for (name, key), (value, tolerance) in wanted.items():
        assert claims[name].values[key] == pytest.approx(value, abs=tolerance), (name, key)


def test_zipf_ratio_falls_with_noise(claims) -> None:
    ratios = [claims["zipf-sign"].values[f"ratio_sigma_{sigma}"] for sigma in ("0.1", "0.5", "1", "2")]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[2] > 1 > ratios[3]


def test_repaired_proof_is_tight_at_one_half(claims) -> None:
    values = claims["repaired-proof"].values
    assert values["largest_lower_side"] == pytest.approx(2.0, abs=1e-9)
    assert values["smallest_upper_side"] > 0.019


def test_tables_are_those_of_the_paper() -> None:
    assert model.ACCURACY.shape == model.RHO.shape == (4, 4)
    assert model.ACCURACY[1, 3] == 69.22
