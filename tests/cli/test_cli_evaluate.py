from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderlens.cli.main import main

SMALL = [
    "--model",
    "hmm",
    "--tasks",
    "arith",
    "--orders",
    "forced-ar,random",
    "--limit",
    "2",
    "--max-new-tokens",
    "8",
]


def test_evaluate_prints_accuracies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *SMALL, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "accuracy %" in shown
    assert "random:0" in shown


def test_evaluate_and_regrade_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert main(["evaluate", *SMALL, "--out", run, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [cell["n"] for cell in first["cells"]] == [2, 2]
    assert first["skipped"] == {}
    assert main(["evaluate", "--regrade", "--out", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "hellaswagg"], "did you mean 'hellaswag'"),
        (["--tasks", ""], "--tasks is missing"),
        (["--tasks", "arith", "--grader", "arith"], "must have the form TASK=RULE"),
        (["--tasks", "arith", "--source", "=x"], "must have the form TASK=FILE"),
        (["--tasks", "arith", "--model", "hmmm"], "did you mean 'hmm'"),
        (["--tasks", "arith", "--anchor", "middle"], "anchor 'middle'"),
        (["--regrade"], "no run at"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "run")]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("orderlens:")]
    assert len(lines) == 1
    assert message in lines[0]
