"""Sections of the manual, for tests that run what a page prints."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def section(page: str, heading: str) -> str:
    """Return the text under a heading (without its number signs), down to the next of its level or above."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    code = {f"\x00{place}\x00": part for place, part in enumerate(parts) if part.startswith("```")}
    plain = "".join(
        f"\x00{place}\x00" if part.startswith("```") else part for place, part in enumerate(parts)
    )
    found = re.search(rf"^(#+) {re.escape(heading)}$", plain, flags=re.MULTILINE)
    assert found, f"docs/{page}.md has no heading {heading!r}"
    after = plain[found.end() :]
    end = re.search(rf"^#{{1,{len(found.group(1))}}} ", after, flags=re.MULTILINE)
    after = after[: end.start()] if end else after
    return re.sub(r"\x00\d+\x00", lambda match: code[match.group()], after)
