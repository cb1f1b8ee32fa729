"""The short tables that ``score``, ``generate`` and ``evaluate`` print at the end, and their JSON form.

The first column names policies: a name breaks before ``+`` or ``:`` only, other cells at spaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from orderlens.cli.console import print_json, stdout
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


TOO_LONG = "prompt too long"


def show_accuracies(run: Run, out: str, *, as_json: bool) -> None:
    """Print the accuracies of a graded run and where it is."""
    from orderlens.tasks.evaluation import accuracies, ungraded

    rows, without = accuracies(run), ungraded(run)
    items = {
        name: {"n_items": record["n_items"], "left_out": {TOO_LONG: len(record["skipped_too_long"])}}
        for name, record in run.spec["data"]["tasks"].items()
    }
    if as_json:
        known = {"run": str(out), "model": run.spec["model"]["name"]}
        skipped = {name: n for name, item in items.items() if (n := item["left_out"][TOO_LONG])}
        print_json(known | {"cells": rows, "data": items, "skipped": skipped, "ungraded": without})
        return
    stdout.print(accuracy_table(rows))
    for name, item in items.items():
        n, long = item["n_items"], item["left_out"][TOO_LONG]
        why = f"; left out: {long} with a prompt too long for the model (--max-new-tokens)" if long else ""
        stdout.print(f"data: {name}, {n - long} of {n} items used{why}")
    stdout.print(f"responses: at most {run.spec['max_new_tokens']} tokens (--max-new-tokens)")
    for name, why in without.items():
        stdout.print(f"{name}: {why}; then 'orderlens evaluate --regrade --out {out}'")
    stdout.print(f"run: {out}")
    stdout.print(f"what it says: orderlens downstream {out}")


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the accuracies under a title for every task and grader."""
    below: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        accuracy, interval = "–", "not graded"
        if row["n"]:
            accuracy = f"{100 * row['accuracy']:.2f}"
            interval = f"{100 * row['low']:.2f}–{100 * row['high']:.2f}"
        cells = (spec_of(row["order"], row["seed"]), str(row["n"]), accuracy, interval)
        title = f"{row['task']} ({row['grader']})"
        below.setdefault(title, [(title,)]).append((*cells, str(row["n_without_answer"])))
    heads = ("order", "n", "accuracy %", "95 % interval", "no answer")
    return policy_table(heads, [row for group in below.values() for row in group], stdout.width)


GAP = 2
"""Columns between two cells, and by how much what continues a name is moved in."""

LEAST = 18
"""Columns for a name on narrow terminals: enough for most of its parts."""


def policy_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return the table; its numbers keep their columns, and the names take what is left.

    Args:
        heads: of the columns; the first is that of the names.
        rows: their cells; a row of one cell is a title, and the names below it are moved in.
        width: columns of the terminal.
    """
    indent = " " * GAP if any(len(row) == 1 for row in rows) else ""
    numbers = [(head, *(row[at] for row in rows if len(row) > 1)) for at, head in enumerate(heads)][1:]
    room = max(LEAST, width - sum(GAP + max(map(len, cells)) for cells in numbers) - len(indent))
    names = [[row[0]] if len(row) == 1 else [indent + line for line in cut(row[0], room)] for row in rows]
    longest = max((len(line) for lines in names for line in lines), default=0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(heads[0], overflow="fold", min_width=min(longest, width // 2))
    for head, *cells in numbers:
        least = max(len(word) for cell in (head, *cells) for word in cell.split() or [""])
        table.add_column(head, justify="right", overflow="fold", min_width=least)
    for lines, (_, *cells) in zip(names, rows, strict=True):
        table.add_row("\n".join(lines), *cells)
    return table


def cut(name: str, room: int) -> list[str]:
    """Return a policy's name in lines of at most ``room`` characters where its parts are that short.

    It breaks before a ``+``, and before a ``:`` where what lies between two ``+`` is too long.
    """
    parts = re.split(r"(?=\+)", name)
    pieces = [piece for part in parts for piece in (re.split("(?=:)", part) if len(part) > room else [part])]
    lines = [""]
    for piece in pieces:
        if lines[-1].strip() and len(lines[-1]) + len(piece) > room:
            lines.append(" " * GAP)
        lines[-1] += piece
    return lines
