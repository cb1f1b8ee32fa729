"""Claims of the paper and our own, as lists of checks for ``claims.judge``. Studies in, findings out.

``fixed``, ``decoding`` and ``sweep`` hold the paper's claims on C4. ``correctness`` and ``tiers`` relate
traces to correct answers. ``parallel`` tests the cost of committing several tokens per pass. ``catalogue``
lists them by name and accepts plug-ins. Does not depend on models, pages or figures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderlens.claims.catalogue import FINDINGS, read

__all__ = ["FINDINGS", "read"]


def __getattr__(name: str) -> Any:
    """Import the catalogue on first use, because the audit of the theory does not need it."""
    if name not in __all__:
        raise AttributeError(f"module 'orderlens.claims' has no attribute '{name}'")
    return getattr(importlib.import_module("orderlens.claims.catalogue"), name)
