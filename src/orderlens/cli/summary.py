"""The short tables that ``score``, ``generate`` and ``evaluate`` print at the end, and their JSON form.

The first column has the names of policies, which are broken only before ``+`` or ``:``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from orderlens.cli.console import stdout
from orderlens.cli.terminal import print_json
from orderlens.common.plaintext import printable
from orderlens.metrics.segments import AnyArray
from orderlens.metrics.trace_table import overflow_note
from orderlens.rules import spec_of
from orderlens.store.reader import Run
from orderlens.texts.loading import describe

if TYPE_CHECKING:
    from orderlens.analysis.census import Census

SHOWN_TEXTS, SHOWN_CHARACTERS = 12, 60
"""Number of generated texts in a summary, and characters of each."""
_COLUMNS = ("mean", "var", "content_mean", "content_var", "log_prob", "n")


def summarise(run: Run) -> list[dict[str, Any]]:
    """Return averages over sequences for each order.

    ``n_undefined`` counts, per column, the sequences without a value; the average leaves them out.
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


def print_next(*commands: str) -> None:
    """Print the commands that a user wants next, one per line."""
    for place, command in enumerate(commands):
        stdout.print(f"{'next:' if not place else '     '} orderlens {command}")


def _named(row: Mapping[str, Any], presets: Mapping[str, str]) -> str:
    """Return the order of a row, with the preset by which it was requested."""
    spec = spec_of(row["order"], row["seed"])
    return f"{spec} ({presets[spec]})" if spec in presets else spec


def show_summary(
    run: Run,
    *,
    out: str,
    as_json: bool,
    presets: Mapping[str, str] = MappingProxyType({}),
    likelihoods: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print the averages, the path of the run and what to do next.

    Args:
        run: the run.
        out: its path.
        as_json: print JSON instead.
        presets: canonical spec → preset by which it was requested.
        likelihoods: averages by method (``runs.likelihood.averages``).
    """
    rows = summarise(run)
    for row in rows:
        row["preset"] = presets.get(spec_of(row["order"], row["seed"]))
    if as_json:
        known = {"run": out, "kind": run.spec["kind"], "model": run.spec["model"]["name"]}
        print_json(
            known
            | {"data": run.spec["data"], "orders": rows}
            | _overflow_count(run)
            | ({"likelihood": list(likelihoods)} if likelihoods else {})
        )
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
        shown.append((_named(row, presets), *temperature, str(row["n_samples"]), *numbers))
    stdout.print(policy_table(heads, shown, stdout.width))
    for heat in run.spec.get("temperatures") or ():
        if isinstance(heat, str):
            stdout.print(f"Temperature {heat} within each block; the column T shows its mean.")
    if run.spec["kind"] == "generate":
        _show_texts(run, out)
    _show_overflow(run)
    if likelihoods:
        stdout.print(_likelihood_table(likelihoods))
    for line in describe(run.spec["data"]):
        stdout.print(line)
    stdout.print(f"run: {out}")
    place = quote(out)
    print_next(f"{'view' if run.spec['kind'] == 'generate' else 'analyze'} {place}", f"report {place}")


def _likelihood_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the means over texts by method; the error is that of the draws, not of the texts."""
    heads = ("likelihood", "draws", "log P", "error", "nats/token", "bits/byte")
    names = ("log_prob", "std_error", "nats_per_token", "bits_per_byte")
    shown = [
        (str(row["method"]), str(row["n_draws"]), *(_number(row, name) for name in names)) for row in rows
    ]
    return policy_table(heads, shown, stdout.width)


def _show_overflow(run: Run) -> None:
    """Print how many generated traces have no likelihood because of positions past the requested length."""
    if note := overflow_note(_overflow_before(run)):
        stdout.print(note)


def _overflow_count(run: Run) -> dict[str, int]:
    """Return their number for JSON, if there are any."""
    concerned = int(np.count_nonzero(_overflow_before(run)))
    return {"n_traces_overflow_before": concerned} if concerned else {}


def _overflow_before(run: Run) -> AnyArray:
    counts: AnyArray = run.samples().to_arrow(["n_overflow_before"])["n_overflow_before"].to_numpy()
    return counts


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
    """Return an average; if some sequences have no value, with the number of the others."""
    value, missing = row[name], row.get("n_undefined", {}).get(name, 0)
    if np.isnan(value):
        return "undefined"
    return f"{value:.4f}" + (f" (of {row['n_samples'] - missing})" if missing else "")


def show_census(census: Census, *, out: str, as_json: bool) -> None:
    """Print where the rules stand among all orders, and where the run is."""
    from orderlens.analysis.rendering import as_json as plain
    from orderlens.analysis.rendering import render
    from orderlens.analysis.study import Options, Study
    from orderlens.metrics.estimate import Resampling

    spec, options = census.run.spec, Options(Resampling(1000 if as_json else 0))
    tables = Study(census.run, options).tables(["census"])
    if as_json:
        known = {"run": out, "kind": "census", "model": spec["model"]["name"], "data": spec["data"]}
        print_json(known | {"tables": [plain(table) for table in tables]})
        return
    stdout.print(render(tables[:2], "text", stdout.width))
    for line in describe(spec["data"]):
        stdout.print(line)
    stdout.print(f"run: {out}")
    print_next(f"view {quote(out)}", f"report {quote(out)}")


def show_texts_census(census: Census, *, out: str, as_json: bool) -> None:
    """Print how many texts order alone produces, and what policies that choose among orders would reach."""
    frame, choices = census.texts().to_pandas(), census.choices()
    keys = ["task", "sample_id"]
    done = frame[frame["finished"].astype(bool)]
    prompts, finished = (part.groupby(keys, dropna=False).ngroups for part in (frame, done))
    each = len(done) / finished if finished else None
    if as_json:
        known = {"run": out, "kind": "census-texts", "model": census.run.spec["model"]["name"]}
        counts = {"n_prompts": prompts, "n_finished": finished, "texts_per_prompt": each}
        print_json(known | counts | {"choices": choices})
        return
    graded = [row for row in choices if row["correct"] is not None]
    if graded:
        shown = [(row["policy"], str(row["n"]), f"{100 * row['correct']:.1f} %") for row in graded]
        stdout.print(policy_table(("policy", "prompts", "correct"), shown, stdout.width))
    mean = f"; {each:.2f} texts per prompt" if each is not None else ""
    stdout.print(f"{finished} of {prompts} prompts finished{mean}")
    if finished < prompts:
        stdout.print(f"not finished: {prompts - finished} with too many states; raise --max-states")
    stdout.print(f"run: {out}")
    print_next(f"runs export {quote(out)} --table census_texts --out texts.csv")


TOO_LONG = "prompt too long"


def show_accuracies(
    run: Run, out: str, *, as_json: bool, presets: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Print the accuracies of a graded run, its path and what to do next; see ``show_summary``."""
    from orderlens.tasks.evaluation import accuracies, ungraded

    rows, missing = accuracies(run), ungraded(run)
    items = {
        name: {"n_items": record["n_items"], "left_out": {TOO_LONG: len(record["skipped_too_long"])}}
        for name, record in run.spec["data"]["tasks"].items()
    }
    if as_json:
        known = {"run": str(out), "model": run.spec["model"]["name"]}
        skipped = {name: n for name, item in items.items() if (n := item["left_out"][TOO_LONG])}
        found = {"cells": rows, "data": items, "skipped": skipped, "ungraded": missing}
        print_json(known | found | _overflow_count(run))
        return
    stdout.print(accuracy_table(rows, presets))
    for name, item in items.items():
        n, long = item["n_items"], item["left_out"][TOO_LONG]
        why = f"; left out: {long} whose prompt is too long (lower --max-new-tokens)" if long else ""
        stdout.print(f"data: {name}, {n - long} of {n} items used{why}")
    stdout.print(f"responses: at most {run.spec['max_new_tokens']} tokens (--max-new-tokens)")
    _show_overflow(run)
    for name, why in missing.items():
        stdout.print(f"{name}: {why}; then 'orderlens evaluate --regrade --out {out}'")
    stdout.print(f"run: {out}")
    print_next(f"downstream {quote(out)}", f"view {quote(out)}")


def accuracy_table(
    rows: Sequence[Mapping[str, Any]], presets: Mapping[str, str] = MappingProxyType({})
) -> Table:
    """Return a table of accuracies with a title per task and grader; presets follow their orders.

    IFEval's instruction-strict accuracy has a column if a task has instructions.
    """
    levels = any("instruction_strict" in row for row in rows)
    below: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        accuracy, interval = "–", "not graded"
        if row["n"]:
            accuracy = f"{100 * row['accuracy']:.2f}"
            interval = f"{100 * row['low']:.2f}–{100 * row['high']:.2f}"
        single = f"{100 * row['instruction_strict']:.2f}" if "instruction_strict" in row else "–"
        cells = (_named(row, presets), str(row["n"]), accuracy, interval, *[single] * levels)
        title = f"{row['task']} ({row['grader']})"
        below.setdefault(title, [(title,)]).append((*cells, str(row["n_without_answer"])))
    per_instruction = ["per instruction %"] * levels
    heads = ("order", "n", "accuracy %", "95 % interval", *per_instruction, "no answer")
    return policy_table(heads, [row for group in below.values() for row in group], stdout.width)


GAP = 2
"""Columns between two cells, and indent of continued names."""

MIN_NAME_WIDTH = 18
"""Columns for a name on narrow terminals."""


def policy_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table whose first column has the names of policies, broken to fit the width.

    Args:
        heads: headings of the columns.
        rows: the cells; a row with one cell is a title, and the names below it are indented.
        width: columns of the terminal.
    """
    indent = " " * GAP if any(len(row) == 1 for row in rows) else ""
    numbers = [(head, *(row[at] for row in rows if len(row) > 1)) for at, head in enumerate(heads)][1:]
    room = max(MIN_NAME_WIDTH, width - sum(GAP + max(map(len, cells)) for cells in numbers) - len(indent))
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
    """Break a policy's name into lines of at most ``room`` characters, if its parts are short enough.

    Lines break before ``+``, and before ``:`` if the part between two ``+`` is too long.
    """
    parts = re.split(r"(?=\+)", name)
    pieces = [piece for part in parts for piece in (re.split("(?=:)", part) if len(part) > room else [part])]
    lines = [""]
    for piece in pieces:
        if lines[-1].strip() and len(lines[-1]) + len(piece) > room:
            lines.append(" " * GAP)
        lines[-1] += piece
    return lines
