"""A frontier's plan: policies with their ladder, parts, and the refusal of another plan in the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orderlens.errors import OrderLensError
from orderlens.studies.frontier_plan import FrontierPlan, with_ladder
from orderlens.studies.plan import Stored, resumed_plan, stored_plan
from orderlens.studies.runner import forecast
from orderlens.tasks.catalogue import get_task

PLAN = FrontierPlan(model="hmm", policies=("max-prob", "max-prob+top=4"))


def test_the_ladder_comes_first_and_each_policy_once() -> None:
    found = with_ladder("max-prob,fast-dllm, random:1+top=4", "max-prob", [4, 1, 4])
    assert found == ("max-prob", "max-prob+top=4", "max-prob+threshold=0.9", "random:1+top=4")
    assert with_ladder(["forced-ar", "max-prob"], "", [1]) == ("forced-ar", "max-prob")


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: with_ladder("", "max-prob", [1]), "at least two policies"),
        (lambda: with_ladder("", "max-prob", [0, 1]), "rung 0 of the ladder"),
        (lambda: with_ladder("max-probe", "max-prob", [1, 2]), "max-probe"),
        (
            lambda: FrontierPlan.in_order(["likelyhood"]),
            "unknown part 'likelyhood'; did you mean 'likelihood'",
        ),
        (lambda: FrontierPlan.in_order([""]), "--parts is empty"),
        (lambda: replace(PLAN, n_items=0), "n_items=0 must be at least 1"),
        (lambda: replace(PLAN, couplings=-1), "couplings=-1 must be at least 0"),
        (lambda: stored_plan(Path("/nowhere"), FrontierPlan), "holds no frontier"),
    ],
)
def test_what_cannot_be_meant_is_refused(work, message: str) -> None:
    with pytest.raises(OrderLensError, match=message):
        work()


def test_parts_come_in_their_order() -> None:
    assert FrontierPlan.in_order(["results", "text", "likelihood"]) == ["likelihood", "text", "results"]


def test_who_is_left_out_where() -> None:
    plan = replace(PLAN, policies=("max-prob", "max-prob+threshold=0.9+edit=0.9", "oracle-max-q+top=2"))
    assert [policy.spec for policy in plan.scorable()] == ["max-prob", "oracle-max-q+top=2"]
    assert [policy.spec for policy in plan.deployable()] == ["max-prob", "max-prob+threshold=0.9+edit=0.9"]
    _, first, second = plan.notes()
    assert "max-prob+threshold=0.9+edit=0.9" in first
    assert "oracle-max-q+top=2 (they need the target" in second
    assert PLAN.notes() == ["No tasks were requested (--tasks)."]
    assert replace(PLAN, tasks=("arith",)).notes() == []


def test_a_folder_keeps_its_plan(tmp_path: Path) -> None:
    Stored(PLAN, {}, {}).save(tmp_path)
    assert stored_plan(tmp_path, FrontierPlan).plan == PLAN
    resumed_plan(tmp_path, replace(PLAN, data="/elsewhere/passages", evaluator="smol-ar"))
    with pytest.raises(
        OrderLensError, match=r"another policies \(with max-prob\+top=4, not in this request\)"
    ):
        resumed_plan(tmp_path, replace(PLAN, policies=("max-prob",)))


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("work of years")
    with pytest.raises(OrderLensError, match="is not empty and holds no frontier"):
        resumed_plan(tmp_path, PLAN)
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / FrontierPlan.file).write_text('{"plan": 3}')
    with pytest.raises(OrderLensError, match="is damaged"):
        resumed_plan(tmp_path, PLAN)


SMALL = FrontierPlan(model="hmm", policies=("max-prob", "max-prob+edit=0.9"), n_texts=3, target_tokens=10)


def test_the_size_is_said_before_the_work() -> None:
    plan = replace(SMALL, tasks=("arith",), n_items=2)
    assert [plan.tokens_of(part) for part in ("likelihood", "text", "external", "results")] == [30, 60, 0, 0]
    assert plan.tokens_of("tasks") == 2 * 2 * get_task("arith").max_new_tokens
    assert plan.size(["likelihood", "text", "results"]) == (
        "2 policies; tokens to reveal at most: likelihood 30, text 60"
    )
    assert plan.size(["results"]) == ""


@pytest.mark.parametrize(
    ("seconds", "told"), [(60.0, "likelihood: 60 s; text: up to about 2 min more"), (1.0, "")]
)
def test_the_first_part_forecasts_the_others(seconds: float, told: str) -> None:
    assert forecast(SMALL, ["likelihood", "text"], seconds) == told
    assert forecast(SMALL, ["likelihood"], seconds) == ""
