"""OrderLens: see what the decoding order does inside an order-agnostic language model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from orderlens._version import __version__

if TYPE_CHECKING:
    from orderlens import analysis, metrics, tasks, theory
    from orderlens.analysis.study import Study
    from orderlens.api import evaluate, generate, score
    from orderlens.models.loading import load_model
    from orderlens.rules import parse_order, parse_policy
    from orderlens.runs.options import Engine
    from orderlens.store.reader import Run, open_run
    from orderlens.studies.replicate import replicate
    from orderlens.texts.loading import load_samples
    from orderlens.texts.samples import Sample

_ATTRIBUTES = {
    "Engine": "orderlens.runs.options",
    "Run": "orderlens.store.reader",
    "Sample": "orderlens.texts.samples",
    "Study": "orderlens.analysis.study",
    "evaluate": "orderlens.api",
    "generate": "orderlens.api",
    "load_model": "orderlens.models.loading",
    "load_samples": "orderlens.texts.loading",
    "open_run": "orderlens.store.reader",
    "parse_order": "orderlens.rules",
    "parse_policy": "orderlens.rules",
    "replicate": "orderlens.studies.replicate",
    "score": "orderlens.api",
}
_MODULES = ("analysis", "metrics", "tasks", "theory")

__all__ = [
    "Engine",
    "Run",
    "Sample",
    "Study",
    "__version__",
    "analysis",
    "evaluate",
    "generate",
    "load_model",
    "load_samples",
    "metrics",
    "open_run",
    "parse_order",
    "parse_policy",
    "replicate",
    "score",
    "tasks",
    "theory",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that ``import orderlens`` stays light and torch-free."""
    if name in _ATTRIBUTES:
        return getattr(importlib.import_module(_ATTRIBUTES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"orderlens.{name}")
    raise AttributeError(f"module 'orderlens' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
