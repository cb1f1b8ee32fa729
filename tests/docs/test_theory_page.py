"""The numbers in docs/theory.md are what the code computes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from orderlens import theory

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table after the line that starts with ``heading``."""
    after = TEXT[TEXT.index(heading) :]
    table = re.search(r"(\|.*\n)+", after).group().strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def test_first_example() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    lines = [
        line.split("#") for line in code.splitlines() if "# " in line and re.search(r"\d", line.split("#")[1])
    ]
    for expression, comment in lines:
        shown = float(comment.split("=")[-1])
        assert eval(expression, {"theory": theory, "np": np}) == pytest.approx(shown, rel=1e-11)
    assert len(lines) >= 5


def test_critical_noise_table() -> None:
    for k, sigma, q in rows("`orderlens theory sigma0"):
        if number(k) > 100 and number(k) != 157_183:
            continue
        point = theory.critical_point(number(k))
        assert point.sigma == pytest.approx(number(sigma), abs=0.51 * 10.0 ** -len(sigma.split(".")[1]))
        assert point.q == pytest.approx(number(q), abs=0.51 * 10.0 ** -len(q.split(".")[1]))


def test_counterexample_table() -> None:
    found = rows("Above σ₀ the premise fails")
    for sigma, pair, value, _, even, _, best in found:
        y = np.log([float(item) for item in pair.strip("()").split(",")])
        noise = float(sigma)
        assert np.exp(theory.log_recoverability(y, noise)) == pytest.approx(float(value), abs=1e-9)
        assert np.exp(theory.uniform_log_recoverability(y.sum(), 2, noise)) == pytest.approx(
            float(even), abs=1e-9
        )
        assert np.exp(theory.best_profile(y.sum(), 2, noise).log_a) == pytest.approx(float(best), abs=1e-9)
    assert len(found) == 2


def test_radius_table() -> None:
    for sigma, *radii in rows("(`taylor_radius`)"):
        for centre, radius in zip((-0.35, -0.69, -1.0, -3.0), radii, strict=True):
            assert theory.taylor_radius(centre, float(sigma)) == pytest.approx(float(radius), abs=6e-4)


def test_long_optimum() -> None:
    found = theory.best_profile(-32.0, 64, 2.0)
    assert (int((found.y < -1).sum()), int((found.y > -1).sum())) == (9, 55)
    assert found.y[0] == pytest.approx(-3.556, abs=5e-4)
    assert (found.log_a, found.uniform_log_a) == (
        pytest.approx(-20.18, abs=5e-3),
        pytest.approx(-37.02, abs=5e-3),
    )
