"""Every page of docs/ is on the front page and in the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def test_the_front_page_lists_every_page():
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert linked | {"index.md"} == PAGES


def test_the_navigation_holds_every_page_once():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^ *- (\S+\.md)$", nav, flags=re.MULTILINE)
    assert sorted(listed) == sorted(PAGES)
