"""Every page of docs/ is on a front page and in the site's navigation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
TASKS = ("Start", "Use", "Extend", "Reference", "Results")


def generated() -> tuple[str, ...]:
    """Return the pages that the hook adds."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "recipes" / "site_pages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.GENERATED)


def links(page: str) -> set[str]:
    return set(re.findall(r"\]\(([^)#]+\.md)\)", page))


def test_the_front_page_lists_every_page_of_the_manual():
    linked = links((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    manual = {name for name in PAGES if not name.startswith("results/")}
    assert manual | {"results/index.md"} <= linked | {"index.md"}
    assert all((ROOT / "docs" / name).exists() for name in linked)


def test_the_page_of_results_lists_every_result():
    linked = links((ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8"))
    assert {name for name in PAGES if name.startswith("results/")} <= {
        f"results/{name}" for name in (*linked, "index.md")
    }


def test_the_navigation_holds_every_page_once_by_task():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^ *- (\S+\.md)$", nav, flags=re.MULTILINE)
    assert sorted(listed) == sorted({*PAGES, *generated()})
    assert tuple(re.findall(r"^  - (.+):$", nav, flags=re.MULTILINE)) == TASKS
