"""Fixtures for the task tests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest


def published() -> Path:
    """Return where the published benchmark files are looked for."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("ORDERLENS_DATA", beside))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder with the published benchmark files; tests that need it skip without it."""
    folder = published()
    if not (folder / "SOURCES.md").is_file():
        pytest.skip("the published benchmark files are not here (set ORDERLENS_DATA)")
    return folder


@pytest.fixture(scope="session")
def endless_patterns() -> Callable[[ModuleType], set[str]]:
    """Name the patterns of a module that can backtrack without bound.

    A repeat with an upper bound, or one that gives nothing back (``++``), keeps the time linear in the text.
    """

    def endless(part: Any) -> bool:
        if isinstance(part, _parser.SubPattern):
            return any(
                (str(kind) in ("MAX_REPEAT", "MIN_REPEAT") and value[1] == _parser.MAXREPEAT)
                or endless(value)
                for kind, value in part
            )
        return isinstance(part, tuple | list) and any(map(endless, part))

    def names(module: ModuleType) -> set[str]:
        found = {name: value for name, value in vars(module).items() if isinstance(value, re.Pattern)}
        return {name for name, one in found.items() if endless(_parser.parse(one.pattern, one.flags))}

    return names


@pytest.fixture
def without_punkt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide nltk's sentence data."""
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", ["/nonexistent"])


@pytest.fixture
def with_punkt(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Point nltk to the sentence data next to the published files, if any; return whether it has some now."""
    nltk = pytest.importorskip("nltk")
    from orderlens.tasks.sentences import has_trained_splitter

    if not has_trained_splitter():
        monkeypatch.setattr(nltk.data, "path", [*nltk.data.path, str(published() / "nltk_data")])
    return has_trained_splitter()
