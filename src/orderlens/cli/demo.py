"""``orderlens demo``: the paper's experiments in small, offline, on the bundled model."""

from __future__ import annotations

from pathlib import Path

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_text
from orderlens.cli.option_groups import Machine


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(out: opt.FolderOption = Path("demo-out"), json: JsonFlag = False) -> None:
    """Show in minutes what the reveal order does: every experiment of the paper on the bundled model."""
    from orderlens.cli.replicate import run_plan
    from orderlens.replicate.plan import choose_evaluator, demo_model, make_plan
    from orderlens.replicate.run import STAGES

    model = demo_model()
    if model != "tiny" and not json:
        print_text(f"the bundled model tiny cannot run here (weights or torch missing); using {model}")
    plan = make_plan("demo", model, "passages", evaluator=choose_evaluator("auto", model))
    run_plan(plan, out, STAGES, Machine(), as_json=json)
