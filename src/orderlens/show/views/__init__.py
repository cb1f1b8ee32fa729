"""What is shown of a sample, as plain data: its traces with tokens, passes, numbers, changes, worst steps.

Report, viewer, terminal and notebook all draw this and compute nothing of their own. Knows Arrow rows of the
stored tables, not files, models, colours or pages; ``run.sample(id)`` makes one from a run.
"""

from __future__ import annotations

from orderlens.show.views.plain import plain_row, plain_rows, plain_sample, plain_trace
from orderlens.show.views.replay import Cell, Divergence, canvas, first_divergence
from orderlens.show.views.sample import SampleView, Shown, fetch_sample, sample_view
from orderlens.show.views.trace import (
    Block,
    BottleneckStep,
    Reveals,
    ShownRevision,
    ShownVerdict,
    TraceKey,
    TraceView,
)

__all__ = [
    "Block",
    "BottleneckStep",
    "Cell",
    "Divergence",
    "Reveals",
    "SampleView",
    "Shown",
    "ShownRevision",
    "ShownVerdict",
    "TraceKey",
    "TraceView",
    "canvas",
    "fetch_sample",
    "first_divergence",
    "plain_row",
    "plain_rows",
    "plain_sample",
    "plain_trace",
    "sample_view",
]
