"""The prose of the project keeps to the style rules of design/words.py: turns of phrase, long sentences."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    (
        "src/orderlens/tasks/word_problems.py",
        "of its own",
    ): "prompt of the bundled task; its items are frozen",
}
"""(file, turn) → why it stays; at most 20."""


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("words", ROOT / "design" / "words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def everywhere(words: ModuleType) -> list[Any]:
    return list(words.places())


def test_no_turn_of_phrase_comes_back(everywhere: list[Any]) -> None:
    found = [place for place in everywhere if (place.path, place.turn) not in ALLOWED]
    assert not found, "\n".join(f"{place.path}:{place.line}: [{place.turn}] {place.text}" for place in found)


def test_the_list_of_exceptions_is_short_and_in_use(everywhere: list[Any]) -> None:
    used = {(place.path, place.turn) for place in everywhere}
    assert len(ALLOWED) <= 20
    assert set(ALLOWED) <= used


@pytest.mark.parametrize(
    ("suffix", "text", "turn"),
    [
        (".py", '"""Its sum is no likelihood."""\n', "is no"),
        (".py", "x = 1  # nobody reads it\n", "nobody"),
        (".md", "It commits 6 tokens for .10 bits.\n", "leading zero"),
        (".md", "A sentence " + "with words " * 30 + "ends.\n", "words"),
        (".md", "A sentence: " + "with words, " * 8 + "; and " + "more words " * 8 + "ends.\n", "words"),
        (".md", "Its sum is\nno likelihood.\n", "is no"),
        (".py", 'x = f"behind {y} it"\n', "behind"),
        (".py", 'x = ("It stands " f"{y} here")\n', "stands"),
        (".toml", 'reading = """\nThe model is told \\\nthis."""\n', "told"),
        (".j2", "<p>Shown beside the table</p>\n", "behind"),
        (".ts", "// whoever calls this\n", "nobody"),
    ],
)
def test_each_kind_of_file_is_read(
    words: ModuleType, tmp_path: Path, suffix: str, text: str, turn: str
) -> None:
    (tmp_path / f"file{suffix}").write_text(text, encoding="utf-8")
    found = words.places(tmp_path, (f"file{suffix}",))
    assert [place for place in found if turn in place.turn], found


def test_code_is_not_prose(words: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file.md").write_text("Use `is no` here.\n\n```\nstands at once .5\n```\n", encoding="utf-8")
    (tmp_path / "file.py").write_text("behind = alike = 0.5\nwhoever = behind\n", encoding="utf-8")
    assert words.places(tmp_path, ("file.md", "file.py")) == []
