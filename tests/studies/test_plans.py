"""What studies of several runs share about their plans; each study's own tests read and keep real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from orderlens.errors import RunError, UnknownNameError, UserInputError
from orderlens.studies.plans import (
    from_record,
    read_file,
    refuse_below,
    refuse_other,
    steps_in_order,
    write_file,
)


@dataclass(frozen=True)
class Small:
    data: str = "a/x.jsonl"
    seed: int = 0
    orders: tuple[str, ...] = ("p", "q")


def test_a_plan_comes_back_with_tuples_and_without_fields_of_other_versions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "small.json"
    assert read_file(path, "study", dict) is None
    write_file(path, {"data": "é", "orders": ["r"], "gone": 1})
    assert read_file(path, "study", lambda record: from_record(Small, record)) == Small("é", 0, ("r",))


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (Small(seed=3), r"another seed \(0, asked for 3\)"),
        (Small("b/y.jsonl"), r"another data \(x.jsonl, asked for y.jsonl\)"),
        (Small(orders=("p", "r")), r"another orders \(without r; with q, not asked for\)"),
        (Small(orders=("q", "p")), r"another orders \(p, q, asked for q, p\)"),
    ],
)
def test_the_first_difference_is_named_unless_it_is_free(tmp_path: Path, new: Small, said: str) -> None:
    with pytest.raises(RunError, match=said):
        refuse_other(tmp_path, "study", Small(), new)
    refuse_other(tmp_path, "study", Small(), new, ("seed", "data", "orders"))
    refuse_other(tmp_path, "study", Small(), Small("c/x.jsonl"))


def test_steps_come_in_their_order_and_unknown_ones_are_named() -> None:
    assert steps_in_order("step", ["c", "a", "a"], ("a", "b", "c")) == ["a", "c"]
    with pytest.raises(UnknownNameError, match=r"unknown step 'abd'; did you mean 'abc'\? \(known: abc\)"):
        steps_in_order("step", ["abd"], ("abc",))


def test_fields_have_a_least_value() -> None:
    refuse_below(Small(), seed=0)
    with pytest.raises(UserInputError, match="seed=0 must be at least 1"):
        refuse_below(Small(), seed=1)
