"""``orderlens replicate`` and ``demo``: the paper end to end, on any model or in small on the bundled one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from orderlens.studies.replicate_plan import ReplicatePlan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Decoded

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
    from orderlens.studies.replicate_plan import make_plan

    chosen = parse_stages(stages, decode_only, docs)
    refuse_place(out, folder=True)
    if docs is not None:
        refuse_place(docs, overwrite=overwrite)
    warm = None if temperatures is None else tuple(t for t in opt.temperatures(temperatures) if t > 0)
    plan = make_plan(
        preset,
        model,
        data,
        n_texts=limit,
        temperatures=warm,
        evaluator=evaluator,
        split=split,
        seed=seed,
        batch_size=machine.batch_size,
    )
    run_plan(plan, out, chosen, machine, as_json=json, docs=docs)


def parse_stages(text: str | None, decode_only: bool, docs: Path | None = None) -> list[str]:
    """Return the stages that the options ask for."""
    from orderlens.studies.replicate_plan import ReplicatePlan

    asked = ReplicatePlan.in_order(None if text is None else opt.entries(text))
    chosen = [name for name in asked if not (decode_only and name == "results")]
    if docs and "results" not in chosen:
        raise UserInputError("--docs needs the results: leave out --decode-only, or name results in --stages")
    if not chosen:
        raise UserInputError(
            f"--stages '{text}' leaves nothing to do; choose out of {', '.join(ReplicatePlan.stages)}"
        )
    return chosen


def _share(plan: ReplicatePlan, stages: Sequence[str]) -> Sequence[str]:
    """Return the stages of this rank: what needs no forward pass of the model is the leading rank's."""
    rank = this_rank()
    return stages if rank is None or rank.leads else [name for name in stages if name in plan.model_stages()]


def run_plan(
    plan: ReplicatePlan,
    out: Path,
    stages: Sequence[str],
    machine: Machine,
    *,
    as_json: bool,
    docs: Path | None = None,
) -> None:
    """Run stages of a plan with their progress and print what came out."""
    from orderlens.studies.runner import decode

    def show_stage(label: str) -> AbstractContextManager[Bar | Lines]:
        return progress_bar(f"{label:<30}", None, quiet=as_json, shorter="--limit")

    stages = _share(plan, stages)
    decoding = [name for name in stages if name != "results"]
    decoded = None
    if decoding:
        with keeping(lambda: kept_in(out)):
            decoded = decode(plan, out, decoding, computing=machine.options(), show=show_stage)
    if "results" not in stages:
        assert decoded is not None
        show_decoded(decoded, out, as_json=as_json)
        return
    from orderlens.studies import results

    later = f"orderlens replicate --out {out} --stages results"
    with keeping(lambda: f"the traces are kept; make the results with: {later}"):
        made = results.replicate_results(out, decoded.why_no_scores if decoded else None)
        if docs is not None:
            from orderlens.studies.docs_page import write_docs

            write_docs(made, docs)
    if as_json:
        seconds = {**(decoded.seconds if decoded else {}), **made.seconds}
        print_json(made.record() | {"page": str(made.page), "seconds": seconds})
    else:
        show(made)


def show_decoded(decoded: Decoded[ReplicatePlan], out: Path, *, as_json: bool) -> None:
    """Say what was decoded and how to go on."""
    from orderlens.studies.runner import undone

    if as_json:
        plan, notes = decoded.plan.record(), list(decoded.notes)
        print_json({"folder": str(out), "plan": plan, "notes": notes, "seconds": decoded.seconds})
        return
    for name, seconds in decoded.seconds.items():
        print_text(f"{name}: {seconds:.0f} s")
    for note in decoded.notes:
        print_text(f"note: {note}")
    missing = undone(decoded.plan, out)
    if missing:
        print_text(f"of the traces in {out / 'runs'}, these stages are still to come: {', '.join(missing)}")
        return
    print_text(f"traces are in {out / 'runs'}; the results: orderlens replicate --out {out} --stages results")


def show(results: Results) -> None:
    """Print tables, findings and where everything is."""
    from orderlens.analysis import render

    print_text(f"\n{results.facts}\n")
    shown = [table for table in results.tables if table.name not in LONG_TABLES]
    print_text(render(shown, "text", table_width()))
    print_text(results.reading.text())
    for item in results.figures:
        if item.why is not None:
            print_text(f"figure {item.name} was not drawn: {item.why}")
    for note in results.notes:
        print_text(f"note: {note}")
    names = ", ".join(table.name for table in results.tables)
    print_text(f"tables:  {results.folder / 'tables'} ({names})")
    print_text(f"figures: {results.folder / 'figures'}")
    print_text(f"report:  {results.page} (open it in a browser; samples: orderlens view {results.folder})")


def demo(out: opt.FolderOption = Path("demo-out"), json: JsonFlag = False) -> None:
    """Show in minutes what the reveal order does: every experiment of the paper on the bundled model."""
    from orderlens.studies.replicate_plan import ReplicatePlan, demo_model, make_plan

    model = demo_model()
    if model != "tiny" and not json:
        print_text(f"the bundled model tiny cannot run here (weights or torch missing); using {model}")
    refuse_place(out, folder=True)
    run_plan(make_plan("demo", model), out, ReplicatePlan.stages, Machine(), as_json=json)
