"""``orderlens evaluate``: downstream tasks under several orders, and grading a finished run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, progress_bar, stdout
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.cli.option_groups import Grid, Machine, computing
from orderlens.cli.policy_table import policy_table
from orderlens.errors import UserInputError

if TYPE_CHECKING:
    from rich.table import Table

    from orderlens.store.reader import Run

TOO_LONG = "prompt too long"
_ORDERS = "forced-ar,max-prob,top-margin,random"


def evaluate(
    *,
    out: opt.OutOption,
    tasks: Annotated[str, typer.Option("--tasks", help="Comma-separated; see 'orderlens tasks'.")] = "",
    model: opt.ModelOption = "tiny",
    orders: opt.OrdersOption = _ORDERS,
    limit: opt.LimitOption = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            show_default="by task",
            help="Longest response; 16384 is the paper's and the most.",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: opt.SeedOption = 0,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="TASK=FILE: a local file instead of the hub.")
    ] = None,
    grader: Annotated[
        list[str] | None, typer.Option("--grader", help="TASK=RULE, e.g. mmlu-pro=first-match.")
    ] = None,
    chat: Annotated[bool, typer.Option(help="Use the model's chat template where it has one.")] = True,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Only grade the responses in the run again; needs no model.")
    ] = False,
    grid: Grid,
    machine: Machine,
    json: JsonFlag = False,
) -> None:
    """Decode and grade benchmarks under several reveal orders; an unfinished run is resumed."""
    graders = _pairs(grader, "--grader", "TASK=RULE")
    if regrade:
        _show(_graded_again(out, graders), out, as_json=json)
        return
    if not tasks.strip():
        raise UserInputError("--tasks is missing; name tasks separated by commas, see 'orderlens tasks'")
    from orderlens import api

    with (
        keeping(lambda: kept_in(out)),
        progress_bar("evaluating (tokens)", None, quiet=json, shorter="--limit, --max-new-tokens") as bar,
    ):
        run = api.evaluate(
            model,
            tasks,
            orders,
            limit=limit,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            sources=_pairs(source, "--source", "TASK=FILE"),
            graders=graders,
            chat=chat,
            **computing(out, grid, machine) | {"progress": bar},
        )
    _show(run, out, as_json=json)


def _graded_again(out: str, graders: Mapping[str, str]) -> Run:
    from orderlens.tasks.evaluation import regrade

    with keeping(lambda: f"the responses and earlier verdicts in {out} are as they were; run it again"):
        return regrade(out, graders=graders)


def _pairs(values: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    pairs = {}
    for value in values or ():
        name, sign, rest = value.partition("=")
        if not (name and sign and rest):
            raise UserInputError(f"{option} '{value}' must have the form {form}")
        pairs[name] = rest
    return pairs


def _show(run: Run, out: str, *, as_json: bool) -> None:
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
    stdout.print(_table(rows))
    for name, item in items.items():
        n, long = item["n_items"], item["left_out"][TOO_LONG]
        why = f"; left out: {long} with a prompt too long for the model (--max-new-tokens)" if long else ""
        stdout.print(f"data: {name}, {n - long} of {n} items used{why}")
    stdout.print(f"responses: at most {run.spec['max_new_tokens']} tokens (--max-new-tokens)")
    for name, why in without.items():
        stdout.print(f"{name}: {why}; then 'orderlens evaluate --regrade --out {out}'")
    stdout.print(f"run: {out}")
    stdout.print(f"what it says: orderlens downstream {out}")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the accuracies under a title for every task and grader."""
    from orderlens.rules import spec_of

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
