"""Helpers for tests of code that uses OrderLens: a stub model and writers of small random checkpoints.

Importing this needs numpy only; what writes or builds torch models imports torch when it is called.
"""

from __future__ import annotations

from orderlens.testing.llada2 import write_llada2
from orderlens.testing.small import small_model, write_small
from orderlens.testing.stub import StubModel

__all__ = ["StubModel", "small_model", "write_llada2", "write_small"]
