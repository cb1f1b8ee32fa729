"""How answers end under each order: their length, and end tokens revealed before the text is finished.

    python recipes/answer_endings.py RUN          # a run of 'orderlens generate' or 'orderlens evaluate'

An answer's content ends before its first end token (by position). "Sealed" answers have a cascade as in the
paper's Fig. 2: at least three consecutive steps (or eight, which is unlikely by chance) that reveal end
tokens right to left, and content revealed after them.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import typer

import orderlens as ol
from orderlens.metrics import eos_cascade
from orderlens.rules import spec_of

CASCADES = (3, 8)


def one_answer(rows: pd.DataFrame) -> dict[str, float]:
    """Return the numbers of one answer; ``rows`` are its reveals."""
    rows = rows.sort_values("step")
    ends, places = rows["is_eos"].to_numpy(), rows["position"].to_numpy()
    cascade = eos_cascade(places, ends)
    first = places[ends].min() if ends.any() else places.max() + 1
    return {
        "tokens": float(first - places.min()),
        "ended": float(ends.any()),
        "empty": float(first == places.min()),
        "end token revealed first": float(ends[0]),
    } | {
        f"sealed by {size}": float(cascade.length >= size and not math.isnan(cascade.resume))
        for size in CASCADES
    }


def main(run: Path) -> None:
    """Print one line per order."""
    table = ol.open_run(run).reveals().to_pandas()
    table = table[~table["is_overflow"]]
    seeds = table["seed"].astype(object).where(table["seed"].notna(), None)
    names = [spec_of(order, seed) for order, seed in zip(table["order"], seeds, strict=True)]
    groups = table.assign(spec=names).groupby(["spec", "sample_id"], sort=False)
    answers = pd.DataFrame([{"spec": key[0], **one_answer(rows)} for key, rows in groups])
    for spec, rows in answers.groupby("spec", sort=False):
        shares = {name: rows[name].mean() for name in rows.columns if name not in ("spec", "tokens")}
        text = ", ".join(f"{name} {100 * value:.1f} %" for name, value in shares.items())
        print(f"{spec:12} n {len(rows)}, tokens: median {rows['tokens'].median():.0f}, {text}")


if __name__ == "__main__":
    typer.run(main)
