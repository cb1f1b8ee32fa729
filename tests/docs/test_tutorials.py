"""The tutorials run as a reader would copy them: files, commands, code in their order, outputs as printed."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlens.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
ANYTHING = "…"
"""A line of an output that stands for whatever is printed there."""


def said(work: object, *arguments: object) -> str:
    """Return what ``work(*arguments)`` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        found = work(*arguments)
    assert not found, f"{arguments}: exit {found}"
    return out.getvalue()


def steps(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, what, expected output) in the page's order."""
    blocks = FENCE.findall(page)
    for place, (language, title, body) in enumerate(blocks):
        if title:
            yield "file", title, body
        elif language == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                yield "command", command, expected
        elif language == "python":
            follows = blocks[place + 1] if place + 1 < len(blocks) else ("", "", "")
            yield "code", body, follows[2] if follows[0] == "text" and not follows[1] else ""


def run_page(page: str, folder: Path) -> None:
    """Do what the page says, in ``folder``; every output is compared with the printed one."""
    names: dict[str, object] = {}
    for kind, what, expected in steps(page):
        if kind == "file":
            (folder / what).write_text(expected, encoding="utf-8")
            continue
        if kind == "code":
            printed = said(exec, what, names)
        else:
            program, *arguments = shlex.split(what)
            assert program == "orderlens", what
            printed = said(main, arguments)
        compare(printed, expected, what)


def compare(printed: str, expected: str, what: str) -> None:
    """Fail unless the output is as printed: words exactly, numbers within 2e-3, … any lines."""
    found, rest = printed.splitlines(), expected.splitlines()
    while rest:
        part = rest[: rest.index(ANYTHING)] if ANYTHING in rest else rest
        is_last = ANYTHING not in rest
        assert len(found) >= len(part), f"{what}\nprinted\n{printed}"
        same = all(alike(a, b) for a, b in zip(found, part, strict=False))
        assert same, f"{what}\nprinted\n{printed}\nexpected\n{expected}"
        found, rest = found[len(part) :], rest[len(part) + 1 :]
        if is_last:
            assert not [line for line in found if line.strip()], f"{what}: more was printed\n{printed}"
        elif rest:
            found = found[next(i for i, line in enumerate(found) if alike(line, rest[0])) :]


def alike(found: str, wanted: str) -> bool:
    words, others = found.split(), wanted.split()
    return len(words) == len(others) and all(
        a == b or close(a, b) for a, b in zip(words, others, strict=True)
    )


def close(a: str, b: str) -> bool:
    try:
        return float(a.strip("[],%")) == pytest.approx(float(b.strip("[],%")), abs=2e-3, rel=2e-3)
    except ValueError:
        return False


@pytest.mark.parametrize(
    "name", ["start", "concepts", "tutorial-orders", "tutorial-least-sure", "tutorial-theory", "faq"]
)
def test_the_tutorial_does_what_it_prints(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert [kind for kind, *_ in steps(page)].count("command") >= 2
    run_page(page, tmp_path)


@pytest.mark.parametrize(
    ("printed", "expected", "fits"),
    [
        ("a 1.000\nb\n", "a 1.001\nb\n", True),
        ("a 1.0\nb\n", "a 1.1\nb\n", False),
        ("a\nb\nc\n", "a\n…\nc\n", True),
        ("a\nb\nc\n", "a\n…\n", True),
        ("a\nb\nc\n", "a\nb\n", False),
        ("a\n", "a\nb\n", False),
        ("[0.5, 0.7] 30%\n", "[0.5001, 0.7] 30%\n", True),
    ],
)
def test_outputs_are_compared(printed: str, expected: str, fits: bool) -> None:
    if fits:
        compare(printed, expected, "")
    else:
        with pytest.raises(AssertionError):
            compare(printed, expected, "")
