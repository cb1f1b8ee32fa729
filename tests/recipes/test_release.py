"""The check of a release: files that are missing or do not belong, and the versions that are tried."""

from __future__ import annotations

import importlib.util
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "recipes" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def archives(folder: Path, wheel: list[str], sdist: list[str]) -> tuple[Path, Path]:
    """Write a wheel and an sdist of empty files with these names."""
    empty = folder / "empty"
    empty.write_text("", encoding="utf-8")
    with zipfile.ZipFile(folder / "a.whl", "w") as archive:
        for name in [*wheel, "orderlens-1.dist-info/METADATA"]:
            archive.write(empty, name)
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name in [*sdist, "PKG-INFO"]:
            archive.add(empty, f"orderlens-1/{name}")
    return folder / "a.whl", folder / "a.tar.gz"


def test_contents_are_compared_with_what_git_tracks(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"src/orderlens/__init__.py", "src/orderlens/api.py"}
    others = {"pyproject.toml", "README.md", "LICENSE"}
    monkeypatch.setattr(
        release, "tracked", lambda folder: package if folder == "src/orderlens" else package | others
    )
    whole = [name.removeprefix("src/") for name in package]
    assert release.differences(*archives(tmp_path, whole, [*package, *others])) == []
    found = release.differences(
        *archives(tmp_path, ["orderlens/api.py", "secret.txt"], [*package, "README.md", "notes"])
    )
    assert found == [
        "wheel lacks orderlens/__init__.py",
        "wheel holds secret.txt, which git does not track",
        "sdist lacks LICENSE",
        "sdist lacks pyproject.toml",
        "sdist holds notes, which git does not track",
    ]


def test_the_root_alone_says_what_git_ignores() -> None:
    """The build reads only this .gitignore; one further down would put ignored files into the sdist."""
    below = [
        path
        for folder in ("frontend", "docs", "design", "recipes", "src")
        for path in (ROOT / folder).glob("**/.gitignore")
    ]
    assert [path for path in below if "node_modules" not in path.parts] == []
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {"frontend/node_modules/", "frontend/.test/", "dist/"} <= set(ignored)


def test_every_classified_version_is_tried_or_named(release: ModuleType) -> None:
    assert release.classified() == ["3.11", "3.12", "3.13"]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert release.interpreter("3.99") is None
    assert release.interpreter(here) is None or Path(release.interpreter(here)).exists()
