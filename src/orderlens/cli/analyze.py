"""``orderlens analyze``: the paper's tables of one or several runs, with intervals and controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import UNBOUND_WIDTH, JsonFlag, print_json, print_text, stderr, table_width
from orderlens.common.files import refuse_place, write_text
from orderlens.errors import UserInputError

if TYPE_CHECKING:
    from orderlens.analysis.study import Options
    from orderlens.analysis.table import Table

RunsArgument = Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run folders (read as one).")]
TableOption = Annotated[
    list[str] | None,
    typer.Option(
        "--table", help="Table to show; repeat or separate by commas. Default: all the run can fill."
    ),
]
FormatOption = Annotated[str, typer.Option("--format", help="text, csv, latex, markdown or json.")]
PaperFlag = Annotated[
    bool, typer.Option("--paper", help="Put the paper's printed value and the difference beside ours.")
]
NullFlag = Annotated[
    bool,
    typer.Option(
        "--null", help="Show what the tables would look like if Var carried nothing (mean-only null)."
    ),
]
EvaluatorOption = Annotated[
    str | None,
    typer.Option(
        "--evaluator",
        help="External perplexity by this model: tiny-ar, smol-ar, hf:ORG/NAME or default (GPT-2 Large).",
    ),
]
ListFlag = Annotated[bool, typer.Option("--list", help="List the tables and exit.")]


def analyze(
    runs: RunsArgument = None,
    table: TableOption = None,
    form: FormatOption = "text",
    paper: PaperFlag = False,
    null: NullFlag = False,
    evaluator: EvaluatorOption = None,
    device: Annotated[str | None, typer.Option(help="Device of the evaluator.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Temperature of the one-temperature tables (default: the lowest).")
    ] = None,
    grader: Annotated[
        str | None, typer.Option(help="Use this grader's verdicts (default: one rule per task).")
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples of prompts behind intervals; 0 for none.")] = 1000,
    level: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of resampling and simulation.")] = 0,
    out: Annotated[Path | None, opt.out_option("Write to this file, not to the screen.", "FILE")] = None,
    overwrite: opt.OverwriteFlag = False,
    width: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default="the terminal's; 100 elsewhere",
            help="Most columns of a table as text; 0 for any number.",
        ),
    ] = None,
    list_tables: ListFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Turn runs into the paper's tables plus the controls.

    Undefined cells say why they are undefined; intervals come from resampling prompts.
    """
    from orderlens.analysis.rendering import FORMATS
    from orderlens.analysis.study import Options
    from orderlens.analysis.tables import table_recipes
    from orderlens.metrics.estimate import Resampling
    from orderlens.metrics.external import DEFAULT_EVALUATOR
    from orderlens.registry import refuse_unknown

    if list_tables:
        _print_list({name: recipe.summary for name, recipe in table_recipes().items()}, json_output)
        return
    form = "json" if json_output else form
    refuse_unknown("format", form, FORMATS)  # before the work, not after it
    if out is not None:
        refuse_place(out, overwrite=overwrite)
    names = [name for item in table or [] for name in opt.entries(item)]
    options = Options(
        resampling=Resampling(bootstrap, seed, level),
        temperature=temperature,
        evaluator=DEFAULT_EVALUATOR if evaluator == "default" else evaluator,
        device=device,
        grader=grader,
    )
    tables = _build(runs or [], names + (["null"] if null and "null" not in names else []), options)
    if width is None:
        width = UNBOUND_WIDTH if out is not None else table_width()
    _show(tables, form, paper, out, width or None, left_out(runs or []))


def _build(runs: list[str], names: list[str], options: Options) -> list[Table]:
    from orderlens.analysis.null import simulate_study
    from orderlens.analysis.study import Study
    from orderlens.analysis.tables_controls import null_table

    if not runs:
        if names == ["null"]:
            return [null_table(simulate_study(seed=options.resampling.seed), options, made_up=True)]
        raise UserInputError("no run given; write orderlens analyze RUN… (only --null works without one)")
    return Study.open(runs, options).tables(names or None)


def left_out(runs: list[str]) -> dict[str, str]:
    """Say, by run, what its data left out; runs that used every row are not named."""
    from orderlens.store.reader import open_run
    from orderlens.texts.loading import describe

    records = {run: open_run(run).spec.get("data") or {} for run in runs}
    return {
        run: describe(data)[0] for run, data in records.items() if any((data.get("left_out") or {}).values())
    }


def _show(
    tables: list[Table],
    form: str,
    paper: bool,
    out: Path | None,
    width: int | None,
    notes: dict[str, str],
) -> None:
    from orderlens.analysis.rendering import as_json, render
    from orderlens.analysis.table import beside_paper

    ready = [beside_paper(table) for table in tables] if paper else tables
    if out is not None:
        write_text(out, render(ready, form, width))
    elif form == "json":
        print_json({"tables": [as_json(table) for table in ready], "data": notes})
        return
    else:
        print_text(render(ready, form, width))
    for run, note in notes.items():
        stderr.print(f"note: {run}: {note}")


def _print_list(summaries: dict[str, str], json_output: bool) -> None:
    if json_output:
        print_json(summaries)
        return
    width = max(len(name) for name in summaries)
    print_text("\n".join(f"{name.ljust(width)}  {text}" for name, text in summaries.items()))
