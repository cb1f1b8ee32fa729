"""Tables of policies at the width of a terminal: names break at their joints, numbers not at all."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from orderlens.cli import console
from orderlens.cli.summary import accuracy_table, cut, policy_table

LONG = "max-prob:select=argmax+klass=0.9:0.01+edit=0.9"
HEADS = ("order", "n", "accuracy %", "95 % interval", "no answer")
ROWS = [
    ("hellaswag (last-letter)",),
    *(
        (name, "10042", "93.75", "91.00–100.00", "12")
        for name in ("forced-ar", "max-prob+threshold=0.95", LONG)
    ),
]


def shown(table, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True, markup=False).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_table_fits_and_nothing_is_torn(width: int) -> None:
    lines = shown(policy_table(HEADS, ROWS, width), width)
    assert max(map(len, lines)) <= max(width, 80)  # below that it may run over the edge
    words = {word for line in lines for word in line.split()}
    assert words >= {"10042", "93.75", "91.00–100.00", "12", "forced-ar", "accuracy", "interval"}
    pieces = set(re.split(r"(?=[+:])", LONG))
    joined = [word for word in words if re.match(r"max-prob|[+:]", word)]
    assert all(set(re.split(r"(?=[+:])", word)) <= pieces | {"", "+threshold=0.95"} for word in joined)


def test_names_stand_below_their_title_in_one_line_where_there_is_room() -> None:
    assert [line[:48].rstrip() for line in shown(policy_table(HEADS, ROWS, 120), 120)] == [
        "order",
        "hellaswag (last-letter)",
        "  forced-ar",
        "  max-prob+threshold=0.95",
        f"  {LONG}",
    ]
    narrow = shown(policy_table(HEADS, ROWS, 80), 80)
    assert [line[:30].rstrip() for line in narrow[-2:]] == [
        "  max-prob:select=argmax",
        "    +klass=0.9:0.01+edit=0.9",
    ]


@pytest.mark.parametrize(
    ("name", "room", "lines"),
    [
        ("max-prob", 4, ["max-prob"]),
        ("max-prob+top=4", 14, ["max-prob+top=4"]),
        ("max-prob+top=4", 13, ["max-prob", "  +top=4"]),
        ("a:b=1+c=2+d=3", 9, ["a:b=1+c=2", "  +d=3"]),
        ("a:bb=1+c=2", 5, ["a", "  :bb=1", "  +c=2"]),
        ("", 5, [""]),
    ],
)
def test_where_a_name_breaks(name: str, room: int, lines: list[str]) -> None:
    assert cut(name, room) == lines


def test_no_rows_are_a_table_of_heads() -> None:
    assert shown(policy_table(HEADS, [], 80), 80)[0].split() == " ".join(HEADS).split()


def test_evaluate_lists_policies_by_task_and_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.stdout, "width", 80)
    numbers = {"n": 3, "accuracy": 1 / 3, "low": 0.1, "high": 0.9, "n_without_answer": 0, "seed": None}
    cells = [("arith", LONG, "last"), ("choice", LONG, "line"), ("arith", "max-prob+top=2", "last")]
    rows = [{"task": task, "order": order, "grader": grader} | numbers for task, order, grader in cells]
    lines = shown(accuracy_table(rows), 80)
    assert [line.split()[0] for line in lines] == [
        "order", "arith", "max-prob:select=argmax+klass=0.9:0.01", "+edit=0.9", "max-prob+top=2",
        "choice", "max-prob:select=argmax+klass=0.9:0.01", "+edit=0.9",
    ]  # fmt: skip
    assert lines[4].split() == ["max-prob+top=2", "3", "33.33", "10.00–90.00", "0"]


def test_instructions_have_their_own_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.stdout, "width", 90)
    numbers = {"n": 3, "accuracy": 1 / 3, "low": 0.1, "high": 0.9, "n_without_answer": 0, "seed": None}
    rows = [
        {"task": "ifeval", "order": "max-prob", "grader": "strict", "instruction_strict": 0.625} | numbers,
        {"task": "cmath", "order": "max-prob", "grader": "last-number"} | numbers,
    ]
    lines = [line.split() for line in shown(accuracy_table(rows), 90)]
    assert ["max-prob", "3", "33.33", "10.00–90.00", "62.50", "0"] in lines
    assert ["max-prob", "3", "33.33", "10.00–90.00", "–", "0"] in lines
