"""Tables in, tables out: the paper's tables with intervals and the controls that make them believable."""

from orderlens.analysis.association import controls, order_differences, quadrants, within_cell
from orderlens.analysis.estimate import Estimate, Resampling
from orderlens.analysis.null import mean_only_null, simulate_study
from orderlens.analysis.render import as_json, render
from orderlens.analysis.selectors import selectors
from orderlens.analysis.study import Options, Study
from orderlens.analysis.table import Table, beside_paper
from orderlens.analysis.tables import TABLES, table, table_names

__all__ = [
    "TABLES",
    "Estimate",
    "Options",
    "Resampling",
    "Study",
    "Table",
    "as_json",
    "beside_paper",
    "controls",
    "mean_only_null",
    "order_differences",
    "quadrants",
    "render",
    "selectors",
    "simulate_study",
    "table",
    "table_names",
    "within_cell",
]
