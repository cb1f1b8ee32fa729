"""``orderlens replicate`` and ``demo``: the paper end to end, on any model or in small on the bundled one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import Bar, JsonFlag, print_json, print_text, progress_bar, table_width
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.cli.option_groups import Machine
from orderlens.cli.progress import Lines
from orderlens.common.files import refuse_place
from orderlens.errors import UserInputError
from orderlens.runs.ranks import this_rank

if TYPE_CHECKING:
    from orderlens.studies.replicate.plan import Plan
    from orderlens.studies.replicate.run import Outcome, Traces

EvaluatorOption = Annotated[
    str,
    typer.Option(
        "--evaluator",
        help="External perplexity: auto, tiny-ar, smol-ar, or hf:openai-community/gpt2-large (the paper's).",
    ),
]


StagesOption = Annotated[
    str | None,
    typer.Option(
        "--stages",
        help="Comma-separated out of questions, score, measure, generate, sweep, external, results; "
        "default: all. Several processes may work on one folder at once.",
    ),
]
DecodeOnlyFlag = Annotated[
    bool,
    typer.Option("--decode-only", help="Stop after the last forward pass; make the results later, anywhere."),
]
DocsOption = Annotated[
    Path | None,
    typer.Option(
        "--docs",
        parser=opt.local_place,
        help="Also write the results as this Markdown file, pictures in figures/NAME/ beside it.",
    ),
]
PresetOption = Annotated[str, typer.Option("--preset", help="demo, quick (100 texts) or full (1,000).")]

LONG_TABLES = ("theory", "circulation", "agreement")
"""Written to files but not printed: they are long, and the findings quote what matters of them."""


def replicate(
    *,
    out: opt.FolderOption,
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
    split: opt.SplitOption = "none",
    seed: opt.SeedOption = 0,
    stages: StagesOption = None,
    decode_only: DecodeOnlyFlag = False,
    docs: DocsOption = None,
    overwrite: opt.OverwriteFlag = False,
    machine: Machine,
    json: JsonFlag = False,
) -> None:
    """Run the paper's C4 experiments; the same command resumes what was interrupted."""
    from orderlens.studies.replicate.plan import choose_evaluator, make_plan

    chosen = parse_stages(stages, decode_only, docs)
    refuse_place(out, folder=True)
    if docs is not None:
        refuse_place(docs, overwrite=overwrite)
    warm = None if temperatures is None else tuple(t for t in opt.temperatures(temperatures) if t > 0)
    plan = make_plan(
        preset,
        model,
        data or ("passages" if preset == "demo" else "c4"),
        n_sequences=limit,
        temperatures=warm,
        evaluator=choose_evaluator(evaluator, model),
        split=split,
        seed=seed,
        batch_size=machine.batch_size,
    )
    run_plan(plan, out, chosen, machine, as_json=json, docs=docs)


def parse_stages(text: str | None, decode_only: bool, docs: Path | None = None) -> list[str]:
    """Return the stages that the options ask for."""
    from orderlens.studies.replicate.run import STAGES, check_stages

    asked = STAGES if text is None else opt.entries(text)
    chosen = [name for name in check_stages(asked) if not (decode_only and name == "results")]
    if docs and "results" not in chosen:
        raise UserInputError("--docs needs the results: leave out --decode-only, or name results in --stages")
    if not chosen:
        raise UserInputError(f"--stages '{text}' leaves nothing to do; choose out of {', '.join(STAGES)}")
    return chosen


def _share(plan: Plan, stages: Sequence[str]) -> Sequence[str]:
    """Return the stages of this rank: what needs no forward pass of the model is the leading rank's."""
    rank = this_rank()
    if rank is None:
        return stages
    if plan.budget_s:
        raise UserInputError(
            "a preset with a time limit measures this machine and cannot be shared by ranks; "
            "use --preset quick or full"
        )
    from orderlens.studies.replicate.stages import MODEL_STAGES

    return stages if rank.leads else [name for name in stages if name in MODEL_STAGES]


def run_plan(
    plan: Plan,
    out: Path,
    stages: Sequence[str],
    machine: Machine,
    *,
    as_json: bool,
    docs: Path | None = None,
) -> None:
    """Run stages of a plan with their progress and print what came out."""
    from orderlens.studies.replicate.run import decode_all, make_results

    def show_stage(label: str) -> AbstractContextManager[Bar | Lines]:
        return progress_bar(f"{label:<30}", None, quiet=as_json, shorter="--limit")

    stages = _share(plan, stages)
    decoding = [name for name in stages if name != "results"]
    traces = None
    if decoding:
        with keeping(lambda: kept_in(out)):
            traces = decode_all(plan, out, stages=decoding, computing=machine.options(), show=show_stage)
    if "results" not in stages:
        assert traces is not None
        show_traces(traces, out, as_json=as_json)
        return
    later = f"orderlens replicate --out {out} --stages results"
    with keeping(lambda: f"the traces are kept; make the results with: {later}"):
        outcome = make_results(out, traces.why_no_scores if traces else None)
        if docs is not None:
            from orderlens.studies.replicate.docs_page import write_docs

            write_docs(outcome.results, docs, outcome.notes)
    if as_json:
        print_json(record(outcome, traces))
    else:
        show(outcome)


def show_traces(traces: Traces, out: Path, *, as_json: bool) -> None:
    """Say what was decoded and how to go on."""
    from orderlens.studies.replicate.run import undone

    if as_json:
        notes = list(traces.notes)
        print_json(
            {"folder": str(out), "plan": traces.plan.record(), "notes": notes, "seconds": traces.seconds}
        )
        return
    for name, seconds in traces.seconds.items():
        print_text(f"{name}: {seconds:.0f} s")
    for note in traces.notes:
        print_text(f"note: {note}")
    missing = undone(traces.plan, out)
    if missing:
        print_text(f"of the traces in {out / 'runs'}, these stages are still to come: {', '.join(missing)}")
        return
    print_text(f"traces are in {out / 'runs'}; the results: orderlens replicate --out {out} --stages results")


def record(outcome: Outcome, traces: Traces | None = None) -> dict[str, Any]:
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
        "seconds": {**(traces.seconds if traces else {}), **outcome.seconds},
        "reading": results.reading.record(),
        "tables": [as_json(table) for table in results.tables],
        "figures": figures,
    }


def show(outcome: Outcome) -> None:
    """Print tables, findings and where everything is."""
    from orderlens.analysis import render

    print_text(f"\n{outcome.plan.facts()}\n")
    results = outcome.results
    shown = [table for table in results.tables if table.name not in LONG_TABLES]
    print_text(render(shown, "text", table_width()))
    print_text(results.reading.text())
    for item in results.figures:
        if item.why is not None:
            print_text(f"figure {item.name} was not drawn: {item.why}")
    for note in outcome.notes:
        print_text(f"note: {note}")
    names = ", ".join(table.name for table in results.tables)
    print_text(f"tables:  {results.folder / 'tables'} ({names})")
    print_text(f"figures: {results.folder / 'figures'}")
    print_text(f"report:  {results.page} (open it in a browser; samples: orderlens view {results.folder})")


def demo(out: opt.FolderOption = Path("demo-out"), json: JsonFlag = False) -> None:
    """Show in minutes what the reveal order does: every experiment of the paper on the bundled model."""
    from orderlens.studies.replicate.plan import choose_evaluator, demo_model, make_plan
    from orderlens.studies.replicate.run import STAGES

    model = demo_model()
    if model != "tiny" and not json:
        print_text(f"the bundled model tiny cannot run here (weights or torch missing); using {model}")
    plan = make_plan("demo", model, "passages", evaluator=choose_evaluator("auto", model))
    refuse_place(out, folder=True)
    run_plan(plan, out, STAGES, Machine(), as_json=json)
