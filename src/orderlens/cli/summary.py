"""The short table that ``score`` and ``generate`` print when they are done, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from orderlens.cli.console import print_json, stdout
from orderlens.cli.policy_table import policy_table
from orderlens.common.plaintext import printable
from orderlens.rules import spec_of
from orderlens.store.reader import Run
from orderlens.texts.loading import describe

SHOWN_TEXTS, SHOWN_CHARACTERS = 12, 60
"""How many generated texts a summary shows, and how much of each."""
_COLUMNS = ("mean", "var", "content_mean", "content_var", "log_prob", "n")


def summarise(run: Run) -> list[dict[str, Any]]:
    """Return per-order averages over sequences (each sequence counts once).

    ``n_undefined`` says of how many sequences a number is not defined; they are left out of its mean.
    """
    frame = run.samples().to_pandas()
    keys = ["order", "seed", "temperature"]
    rows = []
    for values, group in frame.groupby(keys, dropna=False, sort=False):
        row: dict[str, Any] = dict(zip(keys, values, strict=True))
        row |= {key: None for key in keys if row[key] != row[key]}
        row["n_samples"] = len(group)
        row["n_undefined"] = {}
        for name in _COLUMNS:
            defined = group[name][np.isfinite(group[name])]
            row[name] = float(defined.mean()) if len(defined) else float("nan")
            row["n_undefined"] |= {name: len(group) - len(defined)} if len(defined) < len(group) else {}
        rows.append(row)
    known = {spec: place for place, spec in enumerate(run.spec.get("orders", []))}
    return sorted(rows, key=lambda row: known.get(spec_of(row["order"], row["seed"]), len(known)))


def show_summary(run: Run, *, out: str, as_json: bool) -> None:
    """Print the averages and where the run is."""
    rows = summarise(run)
    if as_json:
        known = {"run": out, "kind": run.spec["kind"], "model": run.spec["model"]["name"]}
        print_json(known | {"data": run.spec["data"], "orders": rows})
        return
    with_temperature = any(row["temperature"] is not None for row in rows)
    heads = [
        "order",
        *(["T"] if with_temperature else []),
        "sequences",
        "mean log q",
        "Var(log q)",
        "content mean",
        "content Var",
    ]
    shown = []
    for row in rows:
        numbers = [_number(row, name) for name in ("mean", "var", "content_mean", "content_var")]
        temperature = [f"{row['temperature']:g}"] if with_temperature else []
        shown.append((spec_of(row["order"], row["seed"]), *temperature, str(row["n_samples"]), *numbers))
    stdout.print(policy_table(heads, shown, stdout.width))
    if run.spec["kind"] == "generate":
        _show_texts(run, out)
    for line in describe(run.spec["data"]):
        stdout.print(line)
    stdout.print(f"run: {out}")


def _show_texts(run: Run, out: str) -> None:
    """Print the beginning of the first texts."""
    columns = ["sample_id", "order", "seed", "temperature", "text"]
    texts = run.outputs().to_arrow(columns)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("sample", "order", "T", "beginning of the text"):
        table.add_column(head, overflow="fold")
    for row in texts.slice(0, SHOWN_TEXTS).to_pylist():
        text = printable(" ".join((row["text"] or "").split())) or "(empty)"
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        table.add_row(row["sample_id"], spec_of(row["order"], row["seed"]), f"{row['temperature']:g}", shown)
    stdout.print(table)
    if texts.num_rows > SHOWN_TEXTS:
        stdout.print(
            f"… and {texts.num_rows - SHOWN_TEXTS} more texts: "
            f"orderlens runs export {out} --table outputs --out texts.csv"
        )


def _number(row: Mapping[str, Any], name: str) -> str:
    """Return an average, and of how many sequences where some have no value."""
    value, missing = row[name], row["n_undefined"].get(name, 0)
    if np.isnan(value):
        return "undefined"
    return f"{value:.4f}" + (f" (of {row['n_samples'] - missing})" if missing else "")
