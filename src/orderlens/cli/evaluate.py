"""``orderlens evaluate``: downstream tasks under several orders, and grading a finished run again.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.api import Evaluate, run_evaluate
from orderlens.cli.command import Output, takes
from orderlens.errors import UserInputError
from orderlens.runs.request import Opt

if TYPE_CHECKING:
    from rich.table import Table

    from orderlens.store.reader import Run

TOO_LONG = "prompt too long"


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(Evaluate, Output):
    """``evaluate``, or the grading alone."""

    regrade: Annotated[bool, Opt("Only grade the responses in the run again; needs no model.")] = False


@takes(EvaluateCommand, Evaluate)
def evaluate(asked: EvaluateCommand) -> None:
    """Decode and grade, or grade again, and print."""
    from orderlens.cli.console import progress_bar
    from orderlens.cli.interrupt import keeping, kept_in

    out = str(asked.out)
    if asked.regrade:
        from orderlens.tasks.evaluation import regrade

        with keeping(lambda: f"the responses and earlier verdicts in {out} are as they were; run it again"):
            run = regrade(out, graders=asked.rules)
        _show(run, out, as_json=asked.json)
        return
    if not asked.tasks:
        raise UserInputError("--tasks is missing; name tasks separated by commas, see 'orderlens tasks'")
    shorter = "--limit, --max-new-tokens"
    with (
        keeping(lambda: kept_in(out)),
        progress_bar("evaluating (tokens)", None, quiet=asked.json, shorter=shorter) as bar,
    ):
        run = run_evaluate(replace(asked, progress=bar))
    _show(run, out, as_json=asked.json)


def _show(run: "Run", out: str, *, as_json: bool) -> None:
    from orderlens.cli.console import print_json, stdout
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


def _table(rows: Sequence[Mapping[str, Any]]) -> "Table":
    """Return the accuracies under a title for every task and grader."""
    from orderlens.cli.console import stdout
    from orderlens.cli.policy_table import policy_table
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
