"""``orderlens replicate``: the paper's C4 experiments from one command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import Bar, JsonFlag, print_json, print_text, progress_bar

if TYPE_CHECKING:
    from orderlens.replicate.plan import Plan
    from orderlens.replicate.run import Outcome

EvaluatorOption = Annotated[
    str,
    typer.Option(
        "--evaluator",
        help="External perplexity: auto, tiny-ar, or hf:openai-community/gpt2-large (the paper's).",
    ),
]


PresetOption = Annotated[str, typer.Option("--preset", help="demo, quick (100 texts) or full (1,000).")]

LONG_TABLES = ("theory", "circulation", "agreement")
"""Written to files but not printed: they are long, and the verdicts quote what matters of them."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("replicate")(replicate)


def replicate(
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="File or built-in name; default: passages for demo, else c4."),
    ] = None,
    preset: PresetOption = "quick",
    limit: opt.LimitOption = None,
    temperatures: Annotated[
        str | None, typer.Option("--temperatures", help="Temperatures of the sweep, comma-separated.")
    ] = None,
    evaluator: EvaluatorOption = "auto",
    seed: opt.SeedOption = 0,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Texts per work unit.")] = None,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    json: JsonFlag = False,
) -> None:
    """Run the paper's C4 experiments; the same command resumes what was interrupted."""
    from orderlens.cli.inputs import parse_temperatures
    from orderlens.replicate.plan import choose_evaluator, make_plan

    warm = None if temperatures is None else tuple(t for t in parse_temperatures(temperatures) if t > 0)
    plan = make_plan(
        preset,
        model,
        data or ("passages" if preset == "demo" else "c4"),
        n_sequences=limit,
        temperatures=warm,
        evaluator=choose_evaluator(evaluator, model),
        seed=seed,
        batch_size=batch_size,
    )
    run_plan(plan, out, as_json=json, device=device, dtype=dtype)


def run_plan(
    plan: Plan, out: Path, *, as_json: bool, device: str | None = None, dtype: str | None = None
) -> None:
    """Run a plan with progress bars and print what came out."""
    from orderlens.replicate.run import replicate as run_replication

    outcome = run_replication(plan, out, device=device, dtype=dtype, show=bars(quiet=as_json))
    if as_json:
        print_json(record(outcome))
    else:
        show(outcome)


def bars(*, quiet: bool) -> Callable[[str], AbstractContextManager[Bar]]:
    """Return the function that opens a progress bar for a stage."""
    return lambda label: progress_bar(f"{label:<30}", None, quiet=quiet)


def record(outcome: Outcome) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    from orderlens.analysis import as_json

    results = outcome.results
    figures = [
        {"name": item.name, "files": [str(path) for path in item.paths], "why": item.why}
        for item in results.figures
    ]
    return {
        "folder": str(results.folder),
        "page": str(results.page),
        "plan": outcome.plan.record(),
        "notes": list(outcome.notes),
        "seconds": outcome.seconds,
        "verdicts": [item.record() for item in results.verdicts],
        "tables": [as_json(table) for table in results.tables],
        "figures": figures,
    }


def show(outcome: Outcome) -> None:
    """Print tables, verdicts and where everything is."""
    from orderlens.analysis import render
    from orderlens.replicate.page import plan_facts
    from orderlens.replicate.verdicts import render_text

    print_text(f"\n{plan_facts(outcome.plan)}\n")
    results = outcome.results
    shown = [table for table in results.tables if table.name not in LONG_TABLES]
    print_text(render(shown, "text"))
    print_text(render_text(results.verdicts))
    for item in results.figures:
        if item.why is not None:
            print_text(f"figure {item.name} was not drawn: {item.why}")
    for note in outcome.notes:
        print_text(f"note: {note}")
    names = ", ".join(table.name for table in results.tables)
    print_text(f"tables:  {results.folder / 'tables'} ({names})")
    print_text(f"figures: {results.folder / 'figures'}")
    print_text(f"page:    {results.page}")
