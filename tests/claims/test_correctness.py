"""The plain-language reading on studies whose truth is known, in both directions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis import Resampling, simulate_study
from orderlens.analysis.predictors import pooled_cells
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED
from orderlens.claims.correctness import ALL_ORDERS, read_correctness
from orderlens.claims.judge import Reading
from orderlens.common.templating import fill
from orderlens.figures.accuracy import _point
from orderlens.studies.downstream import HEADINGS, NOTES, DownstreamReading

HOW = Resampling(reps=200)


def words(reading: Reading, name: str) -> dict[str, str]:
    (item,) = (item for item in reading.findings if item.id == name)
    return {part.where: part.outcome for part in item.parts()}


@pytest.fixture(scope="module")
def mean_only() -> Reading:
    """Correctness depends on mean log q alone."""
    return read_correctness(simulate_study(1500, seed=3), HOW, {"simulated": 25.0})


@pytest.fixture(scope="module")
def var_matters() -> Reading:
    """Correctness depends on Var beyond the mean."""
    return read_correctness(simulate_study(1500, var_effect=0.8, seed=3), HOW)


def test_when_only_the_mean_matters_the_association_is_there_but_does_not_survive(
    mean_only: Reading,
) -> None:
    assert set(words(mean_only, "lower-when-correct").values()) == {SUPPORTED}
    assert SUPPORTED not in words(mean_only, "survives-controls").values()
    assert SUPPORTED not in words(mean_only, "better-than-mean").values()
    assert NOT_SUPPORTED in words(mean_only, "better-than-mean").values()
    assert SUPPORTED not in words(mean_only, "beyond-the-mean").values()
    # what the paper reads off its quadrants and selectors appears without any effect of Var
    assert set(words(mean_only, "low-var-in-halves").values()) == {SUPPORTED}
    assert words(mean_only, "min-v-over-max-v")["all orders"] == SUPPORTED
    assert words(mean_only, "min-v-over-max-mean")["all orders"] != SUPPORTED


def test_when_var_matters_it_survives(var_matters: Reading) -> None:
    for name in ("lower-when-correct", "survives-controls", "better-than-mean", "beyond-the-mean"):
        assert set(words(var_matters, name).values()) == {SUPPORTED}, name
    assert words(var_matters, "min-v-over-max-mean")["all orders"] == SUPPORTED
    assert ALL_ORDERS in words(var_matters, "survives-controls")


def test_when_high_var_goes_with_correct_answers_the_claims_are_refused() -> None:
    flipped = read_correctness(simulate_study(600, var_effect=-2.0, mean_effect=0.0, seed=3), HOW)
    assert set(words(flipped, "lower-when-correct").values()) == {NOT_SUPPORTED}
    assert set(words(flipped, "survives-controls").values()) == {NOT_SUPPORTED}
    assert words(flipped, "min-v-over-max-v")["all orders"] == NOT_SUPPORTED


def test_noise_supports_nothing_about_var() -> None:
    frame = simulate_study(600, mean_effect=0.0, seed=5)
    frame["correct"] = np.random.default_rng(0).random(len(frame)) < 0.25
    found = read_correctness(frame, HOW, {"simulated": 25.0})
    for name in ("beats-guessing", "lower-when-correct", "survives-controls", "structured-better"):
        assert SUPPORTED not in words(found, name).values(), name
    assert "little can be learned" in DownstreamReading(found.findings).headlines()[0]


def test_the_random_tier_and_the_band_of_the_structured_orders(mean_only: Reading) -> None:
    assert words(mean_only, "structured-better") == {"": SUPPORTED}
    assert words(mean_only, "random-higher-var") == {"": SUPPORTED}
    assert set(words(mean_only, "beats-guessing").values()) == {SUPPORTED}
    frame = simulate_study(600, seed=3)
    frame.loc[frame["order"] != "random", "correct"] = (
        frame.loc[frame["order"] != "random", "item_id"] % 3 > 0
    )
    alike = read_correctness(frame, HOW)
    assert set(words(alike, "structured-equal").values()) == {SUPPORTED}
    frame.loc[frame["order"] == "max-prob", "correct"] = False
    apart = words(read_correctness(frame, HOW), "structured-equal")
    assert apart == {
        "forced-ar against max-prob": NOT_SUPPORTED,
        "forced-ar against top-margin": SUPPORTED,
        "max-prob against top-margin": NOT_SUPPORTED,
    }


def seeds_of_one_order(var_effect: float) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for item in range(400):
        ease = 2 * rng.normal()
        for draw in range(3):
            log_var, mean = rng.normal() - ease / 2, -np.exp(0.3 * rng.normal() - ease / 4)
            right = rng.random() < 1 / (1 + np.exp(-ease + var_effect * log_var))
            rows.append((f"random:{draw}", "random", item, mean, np.exp(log_var), 20, right))
    names = ["order", "base_order", "item_id", "mean", "var", "n", "correct"]
    return pd.DataFrame(rows, columns=names).assign(task="t")


@pytest.mark.parametrize(("effect", "kept"), [(1.0, True), (0.0, False)])
def test_difficulty_of_items_cannot_fake_the_same_item_claim(effect: float, kept: bool) -> None:
    """Hard items have high Var and wrong answers either way; only the true effect shows inside an item."""
    found = read_correctness(seeds_of_one_order(effect), HOW)
    assert words(found, "lower-when-correct") == {"random": SUPPORTED}
    for name in ("same-item", "same-item-controlled"):
        assert (words(found, name)["random"] == SUPPORTED) is kept, name


def test_too_few_answers_decide_nothing() -> None:
    found = read_correctness(simulate_study(40, var_effect=3.0), HOW, {"simulated": 25.0})
    frame = simulate_study(200, var_effect=3.0).assign(correct=lambda rows: rows["item_id"] < 10)
    few_right = read_correctness(frame, HOW)
    assert set(words(few_right, "lower-when-correct").values()) == {OPEN}
    assert not any(
        item.id == "structured-better" for item in found.findings
    )  # orders are not compared on 40 items
    assert "fewer than 20" in DownstreamReading(few_right.findings).text()


def test_where_nothing_is_right_accuracies_are_not_compared() -> None:
    """Differences of exactly 0 with no width would otherwise pass for proven equality."""
    frame = simulate_study(200, seed=4).assign(correct=False)
    found = read_correctness(frame, HOW)
    names = {item.id for item in found.findings}
    assert "random-higher-var" in names
    assert not names & {"structured-better", "structured-equal", "low-var-in-halves", "min-v-near-best"}
    assert "too few correct" in DownstreamReading(found.findings).text()


def test_every_bare_association_says_what_the_controls_leave(
    mean_only: Reading, var_matters: Reading
) -> None:
    for reading, clause in (
        (mean_only, "holds at equal mean log q and length"),
        (var_matters, "; it holds at equal mean"),
    ):
        (item,) = (item for item in reading.findings if item.id == "lower-when-correct")
        assert all(clause in part.text() for part in item.parts())
    (item,) = (item for item in mean_only.findings if item.id == "lower-when-correct")
    assert not any("; it holds" in part.text() for part in item.parts())


def test_text_and_markdown_sort_claims_by_outcome(mean_only: Reading) -> None:
    reading = DownstreamReading(mean_only.findings, ("Model made up.",))
    markdown = fill(
        "downstream.md.j2", downstream=reading, groups=reading.groups(), rules=NOTES, pictures=[], tables=[]
    )
    for shown in (reading.text(), markdown):
        places = [shown.index(HEADINGS[word]) for word in (SUPPORTED, NOT_SUPPORTED, OPEN)]
        assert places == sorted(places)
        supported = shown[places[0] : places[1]]
        assert "Under the same order, correct answers have lower Var than incorrect ones." in supported
        assert "at equal mean log q and equal length" not in supported
    assert "correct answers have lower Var in 4 of 4 orders" in reading.headlines()[0]
    assert "holds at equal mean log q and length in 0 of 4 orders" in reading.headlines()[0]
    record = reading.record()
    number = record["findings"][1]["checks"][0]
    assert number["interval"][0] < number["estimate"] < number["interval"][1]
    assert f"{record['n_checks']} checks were made" in reading.text()


def test_a_task_without_a_single_verdict_is_left_open() -> None:
    graded, bare = simulate_study(60), simulate_study(60, task="ungraded").astype({"correct": object})
    found = read_correctness(pd.concat([graded, bare.assign(correct=None)]), HOW, {"ungraded": 25.0})
    assert {item.outcome for item in found.findings if item.task == "ungraded"} == {OPEN}
    assert (
        "ungraded: too few correct or incorrect answers" in DownstreamReading(found.findings).headlines()[1]
    )


def test_accuracies_count_answers_without_content() -> None:
    """An empty answer has no Var, but it is an answer: half of max-prob's wrong answers are empty here."""
    frame = simulate_study(400, seed=5)
    empty = frame["order"].eq("max-prob") & frame["correct"].eq(0) & frame.index.to_series().mod(2).eq(0)
    frame.loc[empty, ["mean", "var"]] = np.nan
    frame.loc[empty, "n"] = 0
    found = {item.id: item for item in read_correctness(frame, HOW, {"simulated": 25.0}).findings}
    percent = 100 * frame.groupby("order")["correct"].mean()
    guessing = {check.where: check.estimate.value for check in found["beats-guessing"].checks}
    assert guessing == pytest.approx(percent.to_dict())
    (better,) = found["structured-better"].checks
    structured = percent[["forced-ar", "max-prob", "top-margin"]].mean()
    assert better.estimate.value == pytest.approx(structured - percent["random"])
    shown = {cell.order: _point(cell)["accuracy"]["value"] for cell in pooled_cells(frame, HOW)}
    assert shown == pytest.approx(percent.to_dict()), "the figure accuracy-var"
    pairs = {check.where: check.estimate.value for check in found["structured-equal"].checks}
    assert pairs["forced-ar against max-prob"] == pytest.approx(percent["forced-ar"] - percent["max-prob"])


def test_rivals_are_judged_where_every_sample_has_them() -> None:
    """A true rival beats Var; a gap leaves its order undefined; without numbers it is absent."""
    frame = simulate_study(600, seed=3)
    noise = np.random.default_rng(0).normal(size=len(frame))
    told = frame.assign(lowest_decile=frame["correct"] + 0.3 * noise, mean_entropy=np.nan)
    reading = read_correctness(told, HOW)
    assert set(words(reading, "better-than-lowest_decile").values()) == {NOT_SUPPORTED}
    told.loc[told["order"].eq("random").idxmax(), "lowest_decile"] = np.nan
    (finding,) = (
        item for item in read_correctness(told, HOW).findings if item.id == "better-than-lowest_decile"
    )
    why = {check.where: check.estimate.why for check in finding.checks}
    assert why.pop("random") == "1 of 600 answers have no lowest_decile"
    assert set(why.values()) == {None}
    ids = {item.id for item in reading.findings}
    assert not ids & {"better-than-mean_entropy", "better-than-lowest_group"}
