"""Helpers for tests of code that uses OrderLens: stub model, synthetic runs, small random checkpoints.

Works with the plain install; functions that build torch models import torch when they are called.
"""

from __future__ import annotations

from orderlens.testing.models import StubModel, small_model, write_small
from orderlens.testing.traces import (
    assert_same_rows,
    make_run,
    make_table,
    make_trace,
    random_path,
    random_trace,
)

__all__ = [
    "StubModel",
    "assert_same_rows",
    "make_run",
    "make_table",
    "make_trace",
    "random_path",
    "random_trace",
    "small_model",
    "write_small",
]
