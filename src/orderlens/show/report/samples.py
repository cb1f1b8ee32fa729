"""Some samples of the runs inside a page: chosen by rule, packed so that a browser unpacks them offline."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.common.plaintext import printable
from orderlens.show.views import plain_rows, plain_sample
from orderlens.store.reader import Run

if TYPE_CHECKING:
    from orderlens.analysis.study import Study

MOST_BYTES = 1_000_000
"""Of packed samples in one page; what does not fit is left out, and the page says so."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Samples for the explorer: gzip in base64, and how they were chosen in a sentence."""

    data: str
    note: str


def pack_samples(study: Study, count: int) -> Packed | None:
    """Choose up to ``count`` samples and pack them; None where none is wanted or there is none.

    Samples are ranked by the mean Var of their traces, and taken evenly from the lowest to the highest.
    """
    chosen, total = choose_samples(study, count)
    if not chosen:
        return None
    return pack(study.run, chosen, total)


def choose_samples(study: Study, count: int) -> tuple[list[tuple[str, str]], int]:
    """Return the chosen (run, sample id) pairs, highest mean Var first, and how many samples there are.

    A sample that several runs hold under one id and prompt is one sample, named by the first of them.
    """
    frame = study.every
    by_prompt = frame.groupby("prompt_key", sort=True, dropna=False)
    ranked = by_prompt.agg(run=("run", "first"), sample_id=("sample_id", "first"), var=("var", "mean"))
    ranked = ranked.sort_values(["var", "sample_id"], ascending=False, kind="stable", na_position="last")
    total, wanted = len(ranked), min(max(count, 0), len(ranked))
    if not wanted:
        return [], total
    rows = np.unique(np.linspace(0, total - 1, wanted).round().astype(int))
    return [(str(ranked["run"].iloc[row]), str(ranked["sample_id"].iloc[row])) for row in rows], total


def pack(run: Run, chosen: Sequence[tuple[str, str]], total: int) -> Packed:
    """Pack samples in the order given, until the page would grow too large."""
    samples: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    size = 0
    for name, sample_id in chosen:
        view = run.sample(sample_id, run=name)
        plain = plain_sample(view)
        size += len(_squeezed(plain)) * 4 // 3
        if samples and size > MOST_BYTES:
            break
        samples.append(plain)
        rows += plain_rows(view)
    orders = sorted({row["order"] for row in rows})
    runs = [{"name": name, "facts": ""} for name in dict.fromkeys(row["run"] for row in rows)]
    graded = any(row["correct"] is not None for row in rows)
    catalogue = {"runs": runs, "orders": orders, "graded": graded, "notes": []}
    bundle = {"catalogue": catalogue, "rows": rows, "samples": samples}
    note = (
        f"All samples: {total}."
        if len(samples) == total
        else f"{len(samples)} of {total} samples, evenly from the highest to the lowest mean Var."
    )
    return Packed(base64.b64encode(_squeezed(bundle)).decode(), printable(note))


def _squeezed(value: Any) -> bytes:
    """Return JSON as gzip, the same bytes for the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "backslashreplace"), 9, mtime=0)
