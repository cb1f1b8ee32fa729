"""What is shown of a sample, as plain data: its traces with tokens, passes, numbers, changes, worst steps.

Report, viewer, terminal and notebook all draw this and compute nothing of their own. Knows Arrow rows of the
stored tables, not files, models, colours or pages; ``run.sample(id)`` makes one from a run.
"""

from __future__ import annotations

from orderlens.views.compare import Divergence, first_divergence
from orderlens.views.plain import plain_row, plain_rows, plain_sample, plain_trace
from orderlens.views.replay import Cell, canvas
from orderlens.views.sample import SampleView, sample_view
from orderlens.views.shown import Shown
from orderlens.views.trace import Block, Bottleneck, Reveals, Revision, TraceKey, TraceView, Verdict

__all__ = [
    "Block",
    "Bottleneck",
    "Cell",
    "Divergence",
    "Reveals",
    "Revision",
    "SampleView",
    "Shown",
    "TraceKey",
    "TraceView",
    "Verdict",
    "canvas",
    "first_divergence",
    "plain_row",
    "plain_rows",
    "plain_sample",
    "plain_trace",
    "sample_view",
]
