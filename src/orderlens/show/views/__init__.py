"""A sample for display, as plain data: its traces with tokens, passes, numbers, changes, uncertain steps.

Report, viewer, terminal and notebook draw these data and compute nothing else. Reads Arrow rows of the stored
tables; does not depend on files, models, colours or pages. ``run.sample(id)`` makes one from a run.
"""

from __future__ import annotations

from orderlens.show.views.plain import column_terms, plain_row, plain_rows, plain_sample, plain_trace
from orderlens.show.views.replay import Cell, Divergence, canvas, first_divergence
from orderlens.show.views.sample import SampleView, Shown, fetch_sample, sample_view
from orderlens.show.views.trace import (
    Block,
    Reveals,
    ShownBottleneck,
    ShownRevision,
    ShownVerdict,
    TraceKey,
    TraceView,
)

__all__ = [
    "Block",
    "Cell",
    "Divergence",
    "Reveals",
    "SampleView",
    "Shown",
    "ShownBottleneck",
    "ShownRevision",
    "ShownVerdict",
    "TraceKey",
    "TraceView",
    "canvas",
    "column_terms",
    "fetch_sample",
    "first_divergence",
    "plain_row",
    "plain_rows",
    "plain_sample",
    "plain_trace",
    "sample_view",
]
