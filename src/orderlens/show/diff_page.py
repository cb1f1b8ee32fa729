"""The page of ``runs diff``: totals, explanations, and the two paths of each differing text side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderlens.analysis.diff import Diff
from orderlens.common.templating import write_page
from orderlens.rules import spec_of
from orderlens.show.views import fetch_sample
from orderlens.show.views.sketch import markup
from orderlens.store.reader import Run

SHOWN = 20
"""Differing pairs whose paths are drawn."""


def diff_page(diff: Diff, path: Path) -> Path:
    """Write the page; at most ``SHOWN`` differing pairs are drawn."""
    rows = diff.table().to_arrow().to_pylist()
    traces = [(pair.a, pair.b) for pair in diff.rows]
    differing = [
        (row, a.key, b.key)
        for row, (a, b) in zip(rows, traces, strict=True)
        if a is not None and b is not None and row["verdict"] not in ("same", "missing")
    ]
    return write_page(
        path,
        "diff.html.j2",
        same=diff.same,
        totals={name: count for name, count in diff.totals.items() if count},
        tokens_per_pass=diff.tokens_per_pass,
        noise=f"{diff.noise:.3g} nats ({diff.noise_source})",
        explanations=diff.explanations,
        rows=rows,
        pairs=[
            {"row": row, "panes": [_pane(diff.a, key_a), _pane(diff.b, key_b)]}
            for row, key_a, key_b in differing[:SHOWN]
        ],
        n_differing=len(differing),
    )


def _pane(run: Run, key: Mapping[str, Any]) -> str:
    """Return the tokens and log q of one trace as HTML."""
    sample = fetch_sample(run, key["sample_id"], orders=[spec_of(key["order"], key["seed"])])
    names = ("task", "temperature", "sample_seed")
    traces = [t for t in sample.traces if all(getattr(t.key, name) == key[name] for name in names)]
    return markup(sample, traces[:1])
