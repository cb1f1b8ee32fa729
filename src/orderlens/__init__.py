"""OrderLens measures and shows what the decoding order does in masked and diffusion language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from orderlens._version import __version__

if TYPE_CHECKING:
    from orderlens import analysis, metrics, tasks, theory
    from orderlens.analysis.diff import diff
    from orderlens.analysis.study import Study
    from orderlens.api import census, evaluate, generate, score
    from orderlens.decode.record import record
    from orderlens.models.loading import load_model
    from orderlens.models.wrapped import wrap
    from orderlens.rules import parse_order, parse_policy
    from orderlens.runs.likelihood import likelihood
    from orderlens.runs.options import Engine
    from orderlens.show.report.build import report
    from orderlens.show.viewer.serve import view
    from orderlens.store.reader import Run, open_run
    from orderlens.studies.probe import probe
    from orderlens.studies.replicate import replicate
    from orderlens.texts.foreign import import_run
    from orderlens.texts.loading import load_samples
    from orderlens.texts.samples import Sample

_ATTRIBUTES = {
    "Engine": "orderlens.runs.options",
    "Run": "orderlens.store.reader",
    "Sample": "orderlens.texts.samples",
    "Study": "orderlens.analysis.study",
    "census": "orderlens.api",
    "diff": "orderlens.analysis.diff",
    "evaluate": "orderlens.api",
    "generate": "orderlens.api",
    "import_run": "orderlens.texts.foreign",
    "likelihood": "orderlens.runs.likelihood",
    "load_model": "orderlens.models.loading",
    "load_samples": "orderlens.texts.loading",
    "open_run": "orderlens.store.reader",
    "parse_order": "orderlens.rules",
    "parse_policy": "orderlens.rules",
    "record": "orderlens.decode.record",
    "probe": "orderlens.studies.probe",
    "replicate": "orderlens.studies.replicate",
    "report": "orderlens.show.report.build",
    "score": "orderlens.api",
    "view": "orderlens.show.viewer.serve",
    "wrap": "orderlens.models.wrapped",
}
_MODULES = ("analysis", "metrics", "tasks", "theory")

__all__ = [
    "Engine",
    "Run",
    "Sample",
    "Study",
    "__version__",
    "analysis",
    "census",
    "diff",
    "evaluate",
    "generate",
    "import_run",
    "likelihood",
    "load_model",
    "load_samples",
    "metrics",
    "open_run",
    "parse_order",
    "parse_policy",
    "probe",
    "record",
    "replicate",
    "report",
    "score",
    "tasks",
    "theory",
    "view",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use; ``import orderlens`` alone does not import torch."""
    if name in _ATTRIBUTES:
        return getattr(importlib.import_module(_ATTRIBUTES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"orderlens.{name}")
    raise AttributeError(f"module 'orderlens' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
