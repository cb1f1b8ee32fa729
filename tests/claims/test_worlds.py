"""Readings of simulated studies whose truth is known: how often a word is wrong, and what intervals cover.

The big run is asked for by ORDERLENS_SIMULATIONS=N (studies per world and size) and prints the tables of
docs/results/judging.md; a small one with fixed seeds runs always.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis import Resampling
from orderlens.analysis.predictors import pool_seeds
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED
from orderlens.claims.correctness import read_correctness
from orderlens.claims.judge import judge
from orderlens.claims.tiers import beyond_the_mean, choosing, higher_var
from orderlens.metrics.estimate import Clusters, Estimate, difference_of_means

STUDIES = int(os.environ.get("ORDERLENS_SIMULATIONS", "20"))
FACTORS = {"forced-ar": 1.0, "max-prob": 0.9, "random:0": 2.0, "random:1": 2.0}
ABOUT_VAR = ("survives-controls", "beyond-the-mean", "same-item-controlled")
"""Claims that say something of Var itself: wrong in every world but one."""
ABOUT_NOTHING = (
    *ABOUT_VAR,
    "lower-when-correct",
    "better-than-mean",
    "better-than-n",
    "same-item",
    "structured-better",
    "low-var-in-halves",
    "min-v-over-max-v",
    "min-v-over-max-mean",
)
"""Claims that are wrong where correctness is a coin."""

Odds = Callable[[pd.DataFrame], Any]


def standard(values: Any) -> Any:
    return (values - values.mean()) / values.std()


WORLDS: dict[str, Odds] = {
    "nothing": lambda f: np.zeros(len(f)),
    "mean only": lambda f: 0.8 * standard(-np.log(-f["mean"])),
    "hump in the mean": lambda f: 1.0 - 0.9 * standard(np.log(-f["mean"])) ** 2,
    "length only": lambda f: -0.8 * standard(np.log(f["n"])),
    "item difficulty only": lambda f: -1.2 * f["prompt"],
    "Var at equal mean": lambda f: 0.8 * standard(-np.log(-f["mean"])) + 0.8 * standard(f["log_shape"]),
}
"""Log-odds of a correct answer. At equal mean Var falls with the shape of the trace alone."""


def mean_and_var(values: Any, lengths: Any) -> tuple[Any, Any]:
    """Return mean and variance of consecutive pieces of ``values``."""
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(values, starts) / lengths
    return mean, np.add.reduceat((values - np.repeat(mean, lengths)) ** 2, starts) / lengths


def made_up(world: str, n_items: int, seed: int) -> pd.DataFrame:
    """Return graded samples: gamma traces whose mean, shape and length vary by prompt, order and chance."""
    rng = np.random.default_rng([seed, n_items, sorted(WORLDS).index(world)])
    prompt, parts = rng.normal(size=n_items), []
    for order, factor in FACTORS.items():
        length = np.rint(24 * np.exp(0.4 * rng.normal(size=n_items))).astype(int) + 2
        scale = factor * np.exp(-1.2 + 0.5 * prompt + 0.4 * rng.normal(size=n_items))
        log_shape = -0.7 + 0.5 * rng.normal(size=n_items)
        shape = np.exp(log_shape)
        logq = -rng.gamma(np.repeat(shape, length), np.repeat(scale / shape, length))
        mean, var = mean_and_var(logq, length)
        rows = pd.DataFrame({"task": "t", "order": order, "item_id": np.arange(n_items), "prompt": prompt})
        parts.append(
            rows.assign(
                base_order=order.partition(":")[0],
                mean=mean,
                var=var,
                n=length,
                log_shape=log_shape,
            )
        )
    frame = pd.concat(parts, ignore_index=True)
    chance = 1 / (1 + np.exp(-np.asarray(WORLDS[world](frame), np.float64)))
    return frame.assign(correct=rng.random(len(frame)) < chance)


def words(world: str, n_items: int, studies: int, reps: int) -> tuple[Counter[tuple[str, str]], int]:
    """Return how often each (claim, word) came up among all lines, and readings with a wrong 'supported'."""
    wrong = ABOUT_NOTHING if world == "nothing" else () if world.startswith("Var") else ABOUT_VAR
    count: Counter[tuple[str, str]] = Counter()
    bad = 0
    for seed in range(studies):
        reading = read_correctness(made_up(world, n_items, seed), Resampling(reps=reps, seed=seed))
        found = [(item.id, part.outcome) for item in reading.findings for part in item.parts()]
        count.update(found)
        bad += any(word == SUPPORTED and name in wrong for name, word in found)
    return count, bad


def share(count: Counter[tuple[str, str]], name: str, word: str) -> float:
    total = sum(n for (claim, _), n in count.items() if claim == name)
    return count[name, word] / total if total else float("nan")


def var_intervals(study: pd.DataFrame, how: Resampling) -> dict[tuple[str, str], Estimate]:
    """Return the three kinds of intervals that compare orders or answers by Var; the gap once per order."""
    found = {}
    for order, rows in study.groupby("order"):
        wrong = ~rows["correct"].to_numpy()
        found["gap", order] = difference_of_means(
            rows["var"].to_numpy(), wrong, Clusters(rows["item_id"], how)
        )
    found["random − structured", ""] = higher_var("t", pool_seeds(study), how)[0].checks[0].estimate
    found["min-V − best", ""] = choosing("t", study, how)[2].checks[0].estimate
    return found


def coverage(world: str, n_items: int, studies: int, reps: int) -> dict[str, float]:
    """Return, by kind, how often the interval holds the number of a study of 100,000 items."""
    truth = var_intervals(made_up(world, 100_000, 10_000), Resampling(reps=0))
    held: dict[str, list[bool]] = {}
    for seed in range(studies):
        found = var_intervals(made_up(world, n_items, seed), Resampling(reps=reps, seed=seed))
        for key, cell in found.items():
            held.setdefault(key[0], []).append(cell.low <= truth[key].value <= cell.high)
    return {kind: float(np.mean(flags)) for kind, flags in held.items()}


def beyond(world: str, n_items: int, studies: int) -> tuple[float, float]:
    """Return how often the interval of what is beyond mean and length lies above 0, and below."""
    checks = [
        check
        for seed in range(studies)
        for check in beyond_the_mean("t", made_up(world, n_items, seed), Resampling()).checks
    ]
    above = float(np.mean([check.estimate.low > 0 for check in checks]))
    return above, float(np.mean([check.estimate.high < 0 for check in checks]))


def test_a_coin_supports_nothing_about_var() -> None:
    _, bad = words("nothing", 60, 2, 50)
    assert bad == 0


def test_what_is_not_significant_is_left_open() -> None:
    """Sixty items cannot show that Var adds nothing; where it does, it must not be denied."""
    studies = [made_up("Var at equal mean", 60, seed) for seed in range(30)]
    readings = [judge([beyond_the_mean("t", study, Resampling())]) for study in studies]
    found = Counter(check.outcome for reading in readings for check in reading.findings[0].checks)
    assert found[NOT_SUPPORTED] <= 2
    assert found[OPEN] > 45


@pytest.mark.parametrize("world", ["hump in the mean", "mean only", "length only"])
def test_the_mean_need_not_be_monotone(world: str) -> None:
    """Where Var adds nothing the interval holds 0, up to its error."""
    above, below = beyond(world, 120, 25)
    assert above <= 0.1
    assert below <= 0.1


def test_differences_of_var_are_covered() -> None:
    assert min(coverage("mean only", 60, 25, 200).values()) >= 0.84


@pytest.mark.slow
@pytest.mark.parametrize("n_items", [60, 300])
def test_error_rates_in_worlds_with_a_known_truth(n_items: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints, per world: readings with a false claim, words of two claims about Var."""
    out = ["", "| world | items | false readings | above 0 | below 0 | words: yes / no / open |"]
    for world in WORLDS:
        count, bad = words(world, n_items, STUDIES, 200)
        above, below = beyond(world, n_items, STUDIES)
        shown = "; ".join(
            " / ".join(f"{100 * share(count, name, word):.0f}" for word in (SUPPORTED, NOT_SUPPORTED, OPEN))
            for name in ("beyond-the-mean", "survives-controls")
        )
        rates = f"{bad} of {STUDIES} | {100 * above:.0f} % | {100 * below:.0f} %"
        out.append(f"| {world} | {n_items} | {rates} | {shown} |")
        assert bad <= 2 + 0.1 * STUDIES, world
        if world.startswith("Var"):
            assert share(count, "beyond-the-mean", NOT_SUPPORTED) <= 0.05
    with capsys.disabled():
        sys.stdout.write("\n".join([*out, ""]))


@pytest.mark.slow
@pytest.mark.parametrize("n_items", [60, 300, 1500])
def test_what_intervals_of_var_cover(n_items: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints, per world, how often the three kinds of intervals hold the truth."""
    out = [""]
    for world in WORLDS:
        found = coverage(world, n_items, STUDIES, 400)
        shown = " | ".join(f"{100 * share:.1f} %" for share in found.values())
        out.append(f"| {world} | {n_items:,} | {shown} |")
        assert min(found.values()) >= 0.93 - 3 * (0.93 * 0.07 / STUDIES) ** 0.5, world
    with capsys.disabled():
        sys.stdout.write("\n".join([*out, ""]))
