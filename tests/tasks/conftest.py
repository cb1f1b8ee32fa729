"""Fixtures for the task tests."""

from __future__ import annotations

import os
from pathlib import Path

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


@pytest.fixture
def without_punkt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide nltk's sentence data."""
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", ["/nonexistent"])


@pytest.fixture
def with_punkt(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Show nltk the sentence data beside the published files, if any; say whether it has some now."""
    nltk = pytest.importorskip("nltk")
    from orderlens.tasks.sentences import has_trained_splitter

    if not has_trained_splitter():
        monkeypatch.setattr(nltk.data, "path", [*nltk.data.path, str(published() / "nltk_data")])
    return has_trained_splitter()
