"""The tests of a package stand in the folder of its name, where a stranger looks first."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE, TESTS = ROOT / "src" / "orderlens", ROOT / "tests"
OF_THE_WHOLE = {
    "browser",
    "contracts",
    "docs",
    "frontend",
    "golden",
    "minimal",
    "models/published",
    "recipes",
}
"""Folders for what is no package: several at once, pages, the front end, stored pictures, others' code."""
BY_ANOTHER: dict[str, str] = {}


def packages() -> set[str]:
    found = (path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py"))
    return {name for name in found if name != "."}


def test_every_package_has_its_folder():
    missing = {name for name in packages() if not list((TESTS / name).glob("test_*.py"))}
    assert missing - set(BY_ANOTHER) == set(), "no tests in the folder of this package"


def test_every_folder_has_its_package_or_module():
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {"."}
    known = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.py")}
    known |= packages() | OF_THE_WHOLE
    left = {name for name in folders if name.split("/")[0] not in OF_THE_WHOLE and name not in known}
    assert left == set()


def test_what_is_listed_as_an_exception_exists():
    assert {name for name in OF_THE_WHOLE if not (TESTS / name).is_dir()} == set()
    assert set(BY_ANOTHER) <= packages()
