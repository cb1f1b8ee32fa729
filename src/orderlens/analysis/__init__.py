"""Analysis of runs: the paper's tables with intervals, and control analyses.

Names are imported on first use, so that one module does not load pandas and scipy for the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderlens.analysis.association import controls, order_differences, quadrants, within_cell
    from orderlens.analysis.rendering import as_json, render
    from orderlens.analysis.selecting import selectors
    from orderlens.analysis.study import Options, Study
    from orderlens.analysis.table import TABLES, Table, table_names, with_paper_values
    from orderlens.analysis.tables_controls import mean_only_null, simulate_study
    from orderlens.metrics.estimate import Estimate, Resampling

__all__ = [
    "TABLES",
    "Estimate",
    "Options",
    "Resampling",
    "Study",
    "Table",
    "as_json",
    "controls",
    "mean_only_null",
    "order_differences",
    "quadrants",
    "render",
    "selectors",
    "simulate_study",
    "table_names",
    "with_paper_values",
    "within_cell",
]
_HOME = {
    "association": ("controls", "order_differences", "quadrants", "within_cell"),
    "estimate": ("Estimate", "Resampling"),
    "tables_controls": ("mean_only_null", "simulate_study"),
    "rendering": ("as_json", "render"),
    "selecting": ("selectors",),
    "study": ("Options", "Study"),
    "table": ("TABLES", "Table", "with_paper_values", "table_names"),
}
_MODULE_OF = {
    name: f"{'metrics' if module == 'estimate' else 'analysis'}.{module}"
    for module, names in _HOME.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'orderlens.analysis' has no attribute '{name}'")
    return getattr(importlib.import_module(f"orderlens.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
