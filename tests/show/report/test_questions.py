"""The first screen: answers follow from tables and findings, and say what was not measured."""

from __future__ import annotations

import math

import pytest

from orderlens.analysis.coherence import Coherence, Statistic
from orderlens.analysis.table import Column, Table
from orderlens.claims.checks import OPEN, SUPPORTED, Check, CheckResult
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate
from orderlens.show.report.questions import interval, questions


def plane(**means):
    rows = [
        {
            "order": name,
            "kind": "target-aware" if name.startswith("oracle") else "deployable",
            "mean": Estimate(mean, mean - 0.1, mean + 0.1),
            "var": Estimate(var),
            "bottleneck_rate": Estimate(0.25),
        }
        for name, (mean, var) in means.items()
    ]
    return Table("fixed-sequence", "", ("order",), (Column("mean", ""),), tuple(rows))


def coherence(gap, floor=math.nan, single=None):
    gaps = [Statistic("range_of_means", "deployable", gap, 2)]
    if single is not None:
        gaps.append(Statistic("mean_of_ranges", "deployable", single, 2))
    return Coherence(tuple(gaps), (), floor, (), ())


ORDERS = {"forced-ar": (-1.0, 2.0), "max-prob": (-1.5, 0.7), "oracle-max-q": (-0.9, 3.0)}


def finding(name, outcome, task="", estimate=None):
    check = Check("x", estimate or Estimate(1.0), above=0.1, result=CheckResult(outcome))
    return Finding(name, "c", (check,), task=task)


def test_nothing_measured_is_said_with_the_command_that_would():
    likelihood, path, answers = questions({}, [])
    assert "orderlens score" in likelihood.answer
    assert "Not measured" in path.answer
    assert "orderlens evaluate" in answers.answer
    assert [item.chart for item in (likelihood, path, answers)] == [None] * 3


@pytest.mark.parametrize(("outcome", "short"), [(SUPPORTED, "Yes."), (OPEN, "Left open.")])
def test_the_likelihood_is_answered_by_the_judge_and_shown_with_the_floor(outcome, short):
    measured = coherence(Estimate(0.5, 0.4, 0.6), 0.00002)
    tables = {"fixed-sequence": plane(**ORDERS)}
    found, path, _ = questions(tables, [finding("chain-rule", outcome)], coherence=measured)
    assert (found.short, found.outcome) == (short, outcome)
    assert "the orders differ by 0.500 (0.400 to 0.600) nats per token" in found.answer
    assert "Numerical noise alone accounts for 2 × 10⁻⁵ nats per token." in found.answer
    assert [dots[0].hollow for _, dots in found.chart.rows] == [True, False, False]
    assert "oracle-max-q -0.900" in found.chart.title
    assert path.answer == (
        "Var(log q) is lowest, 0.70 nats² with max-prob, and highest, 3.00 nats² with oracle-max-q. "
        "Tokens revealed at q < ½: 25 % with max-prob, 25 % with oracle-max-q."
    )
    (_, alone, _) = questions({"fixed-sequence": plane(entropy=(-1.0, 2.0))}, [])
    told = "Var(log q) is 2.00 nats² with entropy. Tokens revealed at q < ½: 25 % with entropy."
    assert alone.answer == told


def test_the_first_card_leads_with_what_the_texts_show():
    """An average that is left open does not hide that every single text depends on the order."""
    tables, single = {"fixed-sequence": plane(**ORDERS)}, Estimate(0.2, 0.15, 0.25, 8)
    measured = coherence(Estimate(0.1, 0.0, 0.2), 0.002, single)
    average = finding("chain-rule", OPEN, estimate=Estimate(0.1, 0.0, 0.2, 8))
    decided = finding("chain-rule-per-text", SUPPORTED, estimate=single)
    found = questions(tables, [average, decided], coherence=measured)[0]
    assert (found.short, found.outcome) == ("Yes.", SUPPORTED)
    assert found.answer.startswith(
        "With the order alone, log P of one text changes by 0.200 (0.150 to 0.250)"
    )
    still_open = finding("chain-rule-per-text", OPEN, estimate=single)
    found = questions(tables, [average, still_open], coherence=measured)[0]
    assert (found.short, found.outcome) == ("Yes for these 8 texts; left open in general.", OPEN)


def test_one_order_names_the_remedy_and_compares_nothing():
    undefined = Estimate.undefined("fewer than two orders")
    found = questions(
        {"fixed-sequence": plane(**{"max-prob": ORDERS["max-prob"]})}, [], coherence=coherence(undefined)
    )
    assert found[0].answer.startswith(
        "Not measured: fewer than two orders. Score the same texts under two orders"
    )
    assert "differences" not in found[0].note
    assert "none was generated with several tokens per pass" in found[2].answer


def test_an_unknown_floor_and_an_exact_model_are_said():
    tables = {"fixed-sequence": plane(**ORDERS)}
    answer = questions(tables, [], coherence=coherence(Estimate(3e-16, 0.0, 4e-16)))[0].answer
    assert "differ by 3 × 10⁻¹⁶ nats" in answer
    assert "Numerical noise was not measured" in answer


def test_the_least_and_the_most_uneven_deployable_order_are_drawn():
    curves = [
        {"order": name, "kind": "target-aware" if "oracle" in name else "deployable", "gini": gini,
         "lorenz": [0.0, 0.5 - gini / 2, 1.0]}
        for name, gini in (("max-prob", 0.2), ("random", 0.3), ("forced-ar", 0.4), ("oracle-max-q", 0.9))
    ]  # fmt: skip
    tables = {"fixed-sequence": plane(**ORDERS)}
    found = questions(tables, [], {"curves": curves, "length": 2})[1]
    assert [(name, gini) for name, _, gini in found.chart.curves] == [("max-prob", 0.2), ("forced-ar", 0.4)]
    assert found.note.endswith("Without orders that see the target.")


@pytest.mark.parametrize(("count", "said"), [(1, "is 0.00"), (14, "lies between 0.00 and 13.00")])
def test_var_of_generated_text_covers_all_rows(count, said):
    rows = tuple({"order": f"random+top={n}", "var": Estimate(float(n))} for n in range(count))
    tables = {"temperature": Table("temperature", "", ("order",), (Column("var", ""),), rows)}
    found = questions(tables, [])[1]
    assert found.answer == f"Var(log q) of generated text {said} nats²."
    assert len(found.chart.rows) == min(count, 12)
    assert ("The first 12 of 14 rows." in found.note) == (count > 12)


def test_small_var_keeps_its_digits_and_names_the_temperature():
    rows = tuple(
        {"order": name, "content_var": Estimate(var)} for name, var in (("a", 0.0048), ("b", 0.0131))
    )
    tables = {"content": Table("content", "", ("order",), (Column("content_var", ""),), rows)}
    found = questions(tables, [], at=" at T = 0")[1]
    assert found.answer == "Var(log q) of generated text at T = 0 lies between 5 × 10⁻³ and 0.013 nats²."


def test_several_tokens_per_pass_are_compared_with_one():
    rows = [
        {"order": "max-prob", "passes": 64.0, "n": 64.0, "mean": -0.5},
        {"order": "max-prob+top=4", "passes": 16.0, "n": 64.0, "mean": -0.9},
    ]
    found = questions({}, [], policies=rows, at=" at T = 0")[2]
    assert found.note.startswith("On prompts that all policies decoded at T = 0.")
    assert found.title == "What do several tokens per pass cost?"
    assert found.answer == (
        "max-prob+top=4 needs 16 passes for 64 tokens; "
        "its mean log q is 0.40 nats per token lower than with one token per pass."
    )
    assert [name for name, _ in found.chart.rows] == ["max-prob", "max-prob+top=4"]


def test_wrong_answers_by_task():
    judged = [
        finding("lower-when-correct", SUPPORTED, "cmath"),
        finding("lower-when-correct", OPEN, "ifeval"),
        finding("lower-when-correct", OPEN, "gsm8k"),
    ]
    row = {"task": "cmath", "order": "max-prob", "var_correct": Estimate(0.5), "var_incorrect": Estimate(0.8)}
    within = Table("within-cell", "", ("task", "order"), (Column("var_correct", ""),), (row,))
    found = questions({"within-cell": within}, judged)[2]
    assert (found.short, found.outcome) == ("For some tasks.", OPEN)
    claim = "'Correct answers have lower Var than wrong ones'"
    assert found.answer == f"{claim} is supported for cmath; left open for ifeval, gsm8k."
    assert [dot.hollow for dot in found.chart.rows[0][1]] == [False, True]


def test_intervals_and_small_numbers():
    assert interval(Estimate(-0.5, -1.0, 0.25), 2) == "−0.50 (−1.00 to 0.25)"
    assert interval(Estimate(0.5), 1) == "0.5"
    assert interval(Estimate(0.0), 2) == "0.00"
    assert interval(Estimate(-2e-7), 3) == "−2 × 10⁻⁷"
