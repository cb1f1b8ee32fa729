"""Python on pages without a test of their own runs as printed, and values beside it are what it gives."""

from __future__ import annotations

import ast
import contextlib
import csv
import re
from pathlib import Path

import pytest

import orderlens as ol
from support.pages import section

ROOT = Path(__file__).resolve().parents[2]
WORDS = "the ferry leaves at nine and comes back before dark "


def code_of(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def prepare(folder: Path) -> None:
    """Write what pages take for granted: a CSV file of 20 texts, 5 of them long enough, and a scored run."""
    with (folder / "my.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text"], *([WORDS * (3 if i < 5 else 1)] for i in range(20))])
    texts = ol.load_samples("passages", "hmm", limit=2, target_tokens=8)
    ol.score("hmm", texts, ["forced-ar", "random"], out=folder / "runs" / "first")


@pytest.mark.parametrize("page", ["your-data", "looking", "analysing"])
def test_the_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    blocks = code_of(page)
    assert blocks
    names: dict[str, object] = {}
    for code in blocks:
        # The control instead of the bundled model, and fewer made-up items: the same calls, sooner.
        exec(code.replace('"tiny"', '"hmm"').replace("simulate_study()", "simulate_study(60)"), names)


def stated(page: str) -> list[tuple[str, str, object]]:
    """Return (what goes before, expression, value) of each line ``expression   # value``."""
    found, before = [], ""
    for code in code_of(page):
        for line in code.splitlines():
            expression, _, comment = line.partition("  # ")
            with contextlib.suppress(SyntaxError, ValueError):  # most comments are words
                found.append((before, expression, ast.literal_eval(comment.strip())))
            before += line + "\n"
    return found


@pytest.mark.parametrize(("page", "least"), [("analysing", 4), ("your-data", 1)])
def test_values_are_what_the_code_gives(page, least, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    lines = stated(page)
    assert len(lines) >= least
    for before, expression, value in lines:
        names: dict[str, object] = {}
        exec(before.replace('"tiny"', '"hmm"'), names)
        found = eval(expression, names)
        assert found == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), expression


def test_the_graders_of_the_page_decide_as_it_says() -> None:
    (grading,) = re.findall(r"```python\n(.*?)```", section("tasks", "Grading in Python"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(grading, names)
    verdict = names["verdict"]
    assert (verdict.correct, verdict.extracted) == (True, "\\frac{2}{5}")
    assert f"# True, '\\\\frac{{2}}{{5}}', '{verdict.reason.replace(verdict.extracted, '…')}'" in grading
