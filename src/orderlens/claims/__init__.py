"""What the paper and we claim, as lists of checks for ``claims.judge``. Studies in, findings out.

``fixed``, ``decoding`` and ``sweep`` are the paper's claims on C4; ``correctness`` and ``tiers`` ask what a
trace says about the answer, ``parallel`` what committing several tokens per pass costs; ``catalogue`` names
them and takes plug-ins. Knows no model, no page and no picture.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderlens.claims.catalogue import FINDINGS, read

__all__ = ["FINDINGS", "read"]


def __getattr__(name: str) -> Any:
    """Import the catalogue on first use: the audit of the theory's numbers needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'orderlens.claims' has no attribute '{name}'")
    return getattr(importlib.import_module("orderlens.claims.catalogue"), name)
