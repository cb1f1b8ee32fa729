"""The built files of the front end, and what a page's content policy calls them."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Asset:
    """A built file of the front end, and the digest under which a page's content policy lets it run."""

    text: str
    digest: str


@cache
def asset(name: str) -> Asset:
    """Return ``report.js``, ``viewer.js`` or ``page.css``."""
    text = files("orderlens.report").joinpath("assets", name).read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Asset(text, f"sha256-{digest}")
