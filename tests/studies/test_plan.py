"""What all plans share; each study's tests read and keep real ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orderlens.errors import RunError, UnknownNameError, UserInputError
from orderlens.studies.plan import Plan, RunPart, Stored, read_plan, resumed_plan, stored_plan


@dataclass(frozen=True, kw_only=True)
class Small(Plan):
    orders: tuple[str, ...] = ("p", "q")

    study = "sketch"
    command = "sketch"
    file = "sketch.json"
    stages = ("a", "b", "external", "results")
    generating = ("b",)

    def parts(self) -> list[RunPart]:
        return [RunPart("b", name, "decoding", "generate", self.orders, 5) for name in ("one", "two")]


PLAN = Small(model="m", data="a/x.jsonl")


def test_a_plan_comes_back_with_tuples(tmp_path: Path) -> None:
    assert read_plan(tmp_path, Small) is None
    stored = Stored(PLAN, {"source": "é"}, {"digest": "1"})
    stored.save(tmp_path / "new")
    assert stored_plan(tmp_path / "new", Small) == stored
    with pytest.raises(RunError, match="holds no sketch; start one with orderlens sketch --out"):
        stored_plan(tmp_path / "other", Small)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 3}, r"another seed \(0, now 3\)"),
        ({"data": "b/y.jsonl"}, r"another data \(x.jsonl, now y.jsonl\)"),
        ({"orders": ("p", "r")}, r"another orders \(without r; with q, not in this request\)"),
        ({"orders": ("q", "p")}, r"another orders \(p, q, now q, p\)"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    Stored(PLAN, {}, {}).save(tmp_path)
    with pytest.raises(RunError, match=said):
        resumed_plan(tmp_path, replace(PLAN, **changes))


def test_folder_of_the_data_batch_size_and_evaluator_may_change(tmp_path: Path) -> None:
    Stored(PLAN, {}, {}).save(tmp_path)
    kept = resumed_plan(tmp_path, replace(PLAN, data="c/x.jsonl", batch_size=7, evaluator="other"))
    assert kept is not None
    assert kept.plan == replace(PLAN, evaluator="other")


def test_stages_come_in_their_order_and_unknown_ones_are_named() -> None:
    assert Small.in_order(["results", "a", "a"]) == ["a", "results"]
    assert Small.in_order() == list(Small.stages)
    assert Small.model_stages() == ("a", "b")
    with pytest.raises(UnknownNameError, match=r"unknown stage 'resluts'; did you mean 'results'"):
        Small.in_order(["resluts"])
    with pytest.raises(UserInputError, match="--stages is empty"):
        Small.in_order([""])


def test_a_stage_has_the_tokens_of_its_parts() -> None:
    assert [PLAN.tokens_of(stage) for stage in Small.stages] == [0, 10, 0, 0]


def test_fields_have_a_least_value() -> None:
    with pytest.raises(UserInputError, match="n_texts=0 must be at least 1"):
        replace(PLAN, n_texts=0)
