"""``orderlens replicate``, ``demo``, ``frontier`` and ``downstream``: whole studies, from models to results.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderlens.cli.command import Output, takes
from orderlens.cli.read import PICTURES, Formats, Runs, Writes
from orderlens.common.files import refuse_place
from orderlens.errors import UserInputError
from orderlens.runs.options import (
    BlockSize,
    Bootstrap,
    Computing,
    DataName,
    FolderOut,
    Machine,
    ModelName,
    PrefixTokens,
    Seed,
    TargetTokens,
    Temperature,
    local_place,
)
from orderlens.runs.request import Opt
from orderlens.studies.replicate import Replicate

if TYPE_CHECKING:
    from orderlens.cli.console import Bar, Lines
    from orderlens.studies.frontier_plan import FrontierPlan
    from orderlens.studies.replicate_plan import ReplicatePlan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Decoded

LONG_TABLES = ("theory", "circulation", "agreement")
"""Written to files but not printed: they are long, and the findings quote what matters of them."""
COMPARED = (
    "max-prob+threshold=0.9",
    "max-prob+threshold=0.7",
    "forced-ar",
    "forced-ar+top=4",
    "random+top=4",
)


@dataclass(frozen=True, kw_only=True)
class ReplicateCommand(Replicate, Writes, Output):
    """``replicate`` with its stages."""

    stages: Annotated[
        Sequence[str] | None,
        Opt(
            "Out of questions, score, measure, generate, sweep, external, results, separated by commas. "
            "Several processes may work on one folder at once.",
            shown="all",
        ),
    ] = None
    decode_only: Annotated[
        bool, Opt("Stop after the last forward pass; make the results later, anywhere.")
    ] = False
    docs: Annotated[
        Path | None,
        Opt(
            "Also write the results as this Markdown file, pictures in figures/NAME/ beside it.",
            metavar="FILE",
            read=local_place,
        ),
    ] = None

    def chosen_stages(self) -> list[str]:
        """Return the stages that the options ask for."""
        from orderlens.studies.replicate_plan import ReplicatePlan

        asked = ReplicatePlan.in_order(self.stages)
        chosen = [name for name in asked if not (self.decode_only and name == "results")]
        if self.docs and "results" not in chosen:
            raise UserInputError(
                "--docs needs the results: leave out --decode-only, or name results in --stages"
            )
        if not chosen:
            allowed = ", ".join(ReplicatePlan.stages)
            raise UserInputError(
                f"--stages '{','.join(self.stages or ())}' leaves nothing to do; choose out of {allowed}"
            )
        return chosen


@takes(ReplicateCommand, Replicate)
def replicate(asked: ReplicateCommand) -> None:
    """Run the stages and print what came out."""
    out, stages = Path(os.fspath(asked.out)), asked.chosen_stages()
    refuse_place(out, folder=True)
    if asked.docs is not None:
        refuse_place(asked.docs, overwrite=asked.overwrite)
    _run_plan(asked.plan(), out, stages, asked.computing(), as_json=asked.json, docs=asked.docs)


@dataclass(frozen=True, kw_only=True)
class Demo(Output):
    """Show in minutes what the reveal order does: every experiment of the paper on the bundled model."""

    out: FolderOut = Path("demo-out")


@takes(Demo)
def demo(asked: Demo) -> None:
    """Run the small preset."""
    from orderlens.cli.console import print_text
    from orderlens.studies.replicate_plan import ReplicatePlan, demo_model, make_plan

    model = demo_model()
    if model != "tiny" and not asked.json:
        print_text(f"the bundled model tiny cannot run here (weights or torch missing); using {model}")
    refuse_place(asked.out, folder=True)
    _run_plan(make_plan("demo", model), asked.out, ReplicatePlan.stages, Computing(), as_json=asked.json)


def _share(plan: "ReplicatePlan", stages: Sequence[str]) -> Sequence[str]:
    """Return the stages of this rank: what needs no forward pass of the model is the leading rank's."""
    from orderlens.runs.ranks import this_rank

    rank = this_rank()
    return stages if rank is None or rank.leads else [name for name in stages if name in plan.model_stages()]


def _bars(shorter: str, *, quiet: bool) -> "Callable[[str], AbstractContextManager[Bar | Lines]]":
    """Return what opens a progress bar per stage."""
    from orderlens.cli.console import progress_bar

    return lambda label: progress_bar(f"{label:<30}", None, quiet=quiet, shorter=shorter)


def _run_plan(
    plan: "ReplicatePlan",
    out: Path,
    stages: Sequence[str],
    computing: Computing,
    *,
    as_json: bool,
    docs: Path | None = None,
) -> None:
    """Run stages of a plan with their progress and print what came out."""
    from orderlens.cli.console import print_json
    from orderlens.cli.terminal import keeping, kept_in
    from orderlens.studies.runner import decode

    stages = _share(plan, stages)
    decoding = [name for name in stages if name != "results"]
    decoded = None
    if decoding:
        with keeping(lambda: kept_in(out)):
            show = _bars("--limit", quiet=as_json)
            decoded = decode(plan, out, decoding, computing=computing, show=show)
    if "results" not in stages:
        assert decoded is not None
        _show_decoded(decoded, out, as_json=as_json)
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
        _show_replication(made)


def _show_decoded(decoded: "Decoded[ReplicatePlan]", out: Path, *, as_json: bool) -> None:
    """Say what was decoded and how to go on."""
    from orderlens.cli.console import print_json, print_text
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


def _show_replication(results: "Results") -> None:
    """Print tables, findings and where everything is."""
    from orderlens.analysis import render
    from orderlens.cli.console import print_text, table_width

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


@dataclass(frozen=True, kw_only=True)
class Frontier(Machine, Output):
    """Measure quality against tokens per pass: likelihood, external perplexity, accuracy, endings.

    Every forward pass counts. Interrupted or cut into parts, the same command goes on where it stopped.
    """

    out: FolderOut
    model: ModelName
    policies: Annotated[
        Sequence[str], Opt("Policies or presets, separated by commas; see 'orderlens orders'.")
    ] = COMPARED
    ladder: Annotated[str, Opt("Order of the ladder to compare with; none for none.")] = "max-prob"
    rungs: Annotated[Sequence[int], Opt("Its tokens per pass.")] = (1, 2, 4, 8)
    data: DataName = "passages"
    limit: Annotated[int, Opt("Number of texts.")] = 24
    prefix_tokens: PrefixTokens = 32
    target_tokens: TargetTokens = 64
    tasks: Annotated[Sequence[str], Opt("Tasks, separated by commas; none for none.")] = ("arith", "choice")
    items: Annotated[int, Opt("Items per task.")] = 24
    couplings: Annotated[
        int, Opt("Number of jointly committed token sets per text to re-score one token at a time.")
    ] = 4
    evaluator: Annotated[str, Opt("tiny-ar, smol-ar, hf:ORG/NAME; scores the generated texts.")] = "tiny-ar"
    temperature: Temperature = 0.0
    seed: Seed = 0
    parts: Annotated[
        Sequence[str] | None, Opt("Out of likelihood, text, tasks, external, results.", shown="all")
    ] = None
    block_size: BlockSize = None
    bootstrap: Bootstrap = 1000

    def plan(self) -> "FrontierPlan":
        """Return the plan of the folder."""
        from orderlens.studies.frontier_plan import FrontierPlan, with_ladder

        ladder = "" if self.ladder == "none" else self.ladder
        return FrontierPlan(
            model=str(self.model),
            policies=with_ladder(_listed(self.policies), ladder, list(self.rungs)),
            data=self.data,
            n_texts=self.limit,
            prefix_tokens=self.prefix_tokens,
            target_tokens=self.target_tokens,
            tasks=tuple(_listed(self.tasks)),
            n_items=self.items,
            couplings=self.couplings,
            evaluator=self.evaluator,
            temperature=self.temperature,
            seed=self.seed,
            block_size=self.block_size or 0,
            batch_size=self.batch_size or 0,
        )


def _listed(names: Sequence[str]) -> list[str]:
    return [] if list(names) == ["none"] else list(names)


@takes(Frontier)
def frontier(asked: Frontier) -> None:
    """Decode the parts that are missing, then write the results."""
    from orderlens.cli.terminal import keeping
    from orderlens.studies.frontier_plan import FrontierPlan

    out = asked.out
    refuse_place(out, folder=True)
    wanted, plan = FrontierPlan.in_order(asked.parts), asked.plan()
    decoded = None if wanted == ["results"] else _decode(plan, wanted, asked)
    results = None
    if "results" in wanted:
        from orderlens.metrics.estimate import Resampling
        from orderlens.studies.results import frontier_results

        later = f"the traces are kept; make the results with: orderlens frontier --out {out} --parts results"
        with keeping(lambda: later):
            results = frontier_results(out, Resampling(asked.bootstrap))
    _show_frontier(out, decoded, results, as_json=asked.json)


def _decode(plan: "FrontierPlan", parts: list[str], asked: Frontier) -> "Decoded[FrontierPlan]":
    from orderlens.cli.console import print_text
    from orderlens.cli.terminal import keeping, kept_in
    from orderlens.studies.runner import decode

    quiet, shorter = asked.json, "--limit, --items, --policies"
    if (size := plan.size(parts)) and not quiet:
        print_text(f"{size}; --limit, --items and --policies make it shorter")
    computing = Computing(device=asked.device, dtype=asked.dtype, engine=asked.chosen_engine)
    with keeping(lambda: kept_in(asked.out)):
        return decode(
            plan,
            asked.out,
            parts,
            computing=computing,
            show=_bars(shorter, quiet=quiet),
            tell=None if quiet else print_text,
        )


def _show_frontier(
    out: Path, decoded: "Decoded[FrontierPlan] | None", results: "Results | None", *, as_json: bool
) -> None:
    from orderlens.cli.console import print_json, print_text

    seconds = {**(decoded.seconds if decoded else {}), **(results.seconds if results else {})}
    notes = dict.fromkeys([*(decoded.notes if decoded else ()), *(results.notes if results else ())])
    if as_json:
        plan = {"folder": str(out), "plan": decoded.plan.record()} if decoded else {}
        found = results.record() if results else {}
        print_json(plan | found | {"seconds": seconds, "notes": list(notes)})
        return
    if results is not None:
        _show_results(out, results)
    for name, value in seconds.items():
        print_text(f"{name}: {value:.0f} s")
    for note in notes:
        print_text(f"note: {note}")
    if results is None:
        print_text(f"traces are in {out / 'runs'}; the results: the same command with --parts results")


def _show_results(out: Path, results: "Results") -> None:
    from orderlens.analysis.frontier import overview
    from orderlens.analysis.rendering import render
    from orderlens.cli.console import print_text, table_width

    shown = [overview(table) for table in results.tables if table.name == "frontier"]
    print_text(render(shown, "text", table_width()))
    print_text(results.reading.text())
    for item in results.figures:
        print_text(f"figure {item.name}: {item.why or item.paths[0]}")
    print_text(f"tables: {out / 'tables'} ({', '.join(table.name for table in results.tables)})")


@dataclass(frozen=True, kw_only=True)
class DownstreamCommand(Writes, Output):
    """Say what graded runs support about Var and correctness, and what they do not.

    The folder holds index.html, results.md, summary.txt, summary.json, tables/, figures/; no text of data.
    """

    runs: Runs
    out: Annotated[
        Path | None,
        Opt("Write reading, tables and figures to this folder.", "-o", metavar="FOLDER", read=local_place),
    ] = None
    grader: Annotated[str | None, Opt("Use this grader's verdicts.")] = None
    temperature: Annotated[float | None, Opt("One of the runs' temperatures.", shown="the lowest")] = None
    bootstrap: Bootstrap = 1000
    formats: Formats = PICTURES


@takes(DownstreamCommand)
def downstream(asked: DownstreamCommand) -> None:
    """Read graded runs."""
    from orderlens.analysis import Options, Study
    from orderlens.cli.console import print_json, print_text
    from orderlens.metrics.estimate import Resampling
    from orderlens.studies.downstream import graded_study, read_downstream, write_downstream

    resampling = Resampling(asked.bootstrap)
    options = Options(resampling=resampling, temperature=asked.temperature, grader=asked.grader)
    if asked.out is not None:
        refuse_place(asked.out, folder=True, overwrite=asked.overwrite)
    study = graded_study(Study.open(asked.runs, options))
    reading = (
        read_downstream(study)
        if asked.out is None
        else write_downstream(study, asked.out, asked.formats).reading
    )
    if asked.json:
        print_json(reading.record() | {"out": None if asked.out is None else str(asked.out)})
        return
    print_text(reading.text())
    if asked.out is not None:
        print_text(f"report: {asked.out / 'index.html'}")
