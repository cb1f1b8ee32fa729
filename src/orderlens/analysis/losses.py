"""The loss per token by the number of revealed positions of the block, for ``schedule=K:FILE``.

Uses scored traces with one token per pass, and only blocks of the most frequent size. Texts are resampled.
"""

from __future__ import annotations

import numpy as np

from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, never, table
from orderlens.analysis.traces import in_sets, picked_traces
from orderlens.metrics.estimate import Clusters, Estimate, function_of_sums
from orderlens.metrics.segments import FloatArray, divide


def block_losses(study: Study, order: str) -> tuple[list[str], FloatArray]:
    """Return the prompt of every complete block of one order, and −log q by reveal in the block [B, n]."""
    frame = study.scored[study.scored["order"] == order]
    frame = frame[~in_sets(frame)]
    prompts = dict(zip(frame.index, frame["prompt"].astype(str), strict=True))
    owners, found = [], []
    for row, traces, at in picked_traces(study.run, study.all_traces, frame.index, ["logq", "block"]):
        logq, block = (traces.columns[name][at].astype(np.float64) for name in ("logq", "block"))
        for number in np.unique(block):
            owners.append(prompts[row])
            found.append(-logq[block == number])
    sizes = [len(values) for values in found]
    n = max(set(sizes), key=lambda size: (sizes.count(size), size)) if sizes else 0
    kept = [place for place, size in enumerate(sizes) if size == n]
    rows = np.array([found[place] for place in kept], np.float64).reshape(len(kept), n)
    return [owners[place] for place in kept], rows


@table("loss per token by number of revealed positions, for schedule=K", traces="score", suits=never)
def losses(study: Study) -> Table:
    """Return one row per order and number of revealed positions of the block."""
    rows: list[dict[str, Cell]] = []
    for order in study.orders(study.scored):
        owners, loss_BN = block_losses(study, order)
        if not len(loss_BN):
            continue
        clusters = Clusters(owners, study.options.resampling)
        sums = clusters.sums(np.column_stack([loss_BN, np.ones(len(loss_BN))]))
        cells = function_of_sums(clusters, sums, lambda s: divide(s[:, :-1], s[:, -1:]), len(loss_BN))
        rows += [{"order": order, "revealed": str(place), "loss": cell} for place, cell in enumerate(cells)]
    notes = (
        "loss: mean −log q of the next token when this number of the block's positions is revealed.",
        "One token per pass; blocks of the most frequent size. Of a random order it is ARDM's L.",
    )
    columns = (Column("loss", "loss (nats)"),)
    empty: Cell = Estimate.undefined(NO_TARGET)
    shown = tuple(rows) or ({"order": "(none)", "revealed": "(none)", "loss": empty},)
    return Table("losses", "Loss by number revealed", ("order", "revealed"), columns, shown, notes)
