"""``orderlens frontier``: quality of policies against their tokens per pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import Bar, JsonFlag, print_json, print_text, progress_bar, table_width
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.cli.option_groups import Machine
from orderlens.common.files import refuse_place

if TYPE_CHECKING:
    from orderlens.cli.progress import Lines
    from orderlens.studies.frontier_plan import FrontierPlan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Decoded

_POLICIES = "max-prob+threshold=0.9,max-prob+threshold=0.7,forced-ar,forced-ar+top=4,random+top=4"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is decoded: the policies, the texts and the tasks."""

    policies: Annotated[
        str, typer.Option("--policies", help="Comma-separated policies or presets; see 'orderlens orders'.")
    ] = _POLICIES
    ladder: Annotated[
        str, typer.Option("--ladder", help="Order of the ladder to compare with; none for none.")
    ] = "max-prob"
    rungs: Annotated[str, typer.Option("--rungs", help="Its tokens per pass.")] = "1,2,4,8"
    data: opt.DataOption = "passages"
    limit: Annotated[int, typer.Option("--limit", help="Texts.")] = 24
    prefix_tokens: opt.PrefixOption = 32
    target_tokens: opt.TargetOption = 64
    tasks: Annotated[str, typer.Option("--tasks", help="Comma-separated; none for none.")] = "arith,choice"
    items: Annotated[int, typer.Option("--items", help="Items per task.")] = 24
    couplings: Annotated[int, typer.Option("--couplings", help="Sets per text revealed one by one.")] = 4
    evaluator: Annotated[
        str, typer.Option("--evaluator", help="tiny-ar, smol-ar, hf:ORG/NAME; scores the generated texts.")
    ] = "tiny-ar"
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0
    seed: opt.SeedOption = 0

    def plan(self, model: str, block_size: int | None, batch_size: int | None) -> FrontierPlan:
        """Return the plan of the folder."""
        from orderlens.studies.frontier_plan import FrontierPlan, with_ladder

        ladder = "" if self.ladder == "none" else self.ladder
        return FrontierPlan(
            model=model,
            policies=with_ladder(
                _list(self.policies), ladder, opt.numbers("--rungs", self.rungs, int, "1,2,4,8")
            ),
            data=self.data,
            n_texts=self.limit,
            prefix_tokens=self.prefix_tokens,
            target_tokens=self.target_tokens,
            tasks=tuple(_list(self.tasks)),
            n_items=self.items,
            couplings=self.couplings,
            evaluator=self.evaluator,
            temperature=self.temperature,
            seed=self.seed,
            block_size=block_size or 0,
            batch_size=batch_size or 0,
        )


def frontier(
    *,
    out: opt.FolderOption,
    model: opt.ModelOption = "tiny",
    sizes: Sizes,
    parts: Annotated[
        str | None,
        typer.Option("--parts", help="Out of likelihood, text, tasks, external, results. Default: all."),
    ] = None,
    block_size: opt.BlockOption = None,
    machine: Machine,
    bootstrap: Annotated[int, typer.Option(help="Resamples of prompts behind intervals.")] = 1000,
    json: JsonFlag = False,
) -> None:
    """Measure quality against tokens per pass: likelihood, external perplexity, accuracy, endings.

    Every forward pass counts. Interrupted or cut into parts, the same command goes on where it stopped.
    """
    from orderlens.studies.frontier_plan import FrontierPlan

    refuse_place(out, folder=True)
    wanted = FrontierPlan.in_order(None if parts is None else opt.entries(parts))
    plan = sizes.plan(model, block_size, machine.batch_size)
    decoded = None if wanted == ["results"] else _decode(plan, out, wanted, machine, quiet=json)
    results = None
    if "results" in wanted:
        from orderlens.metrics.estimate import Resampling
        from orderlens.studies.results import frontier_results

        later = f"the traces are kept; make the results with: orderlens frontier --out {out} --parts results"
        with keeping(lambda: later):
            results = frontier_results(out, Resampling(bootstrap))
    _show(out, decoded, results, as_json=json)


def _list(text: str) -> list[str]:
    found = opt.entries(text)
    return [] if found == ["none"] else found


def _decode(
    plan: FrontierPlan, out: Path, parts: list[str], machine: Machine, *, quiet: bool
) -> Decoded[FrontierPlan]:
    from orderlens.studies.runner import decode

    def show(label: str) -> AbstractContextManager[Bar | Lines]:
        return progress_bar(f"{label:<30}", None, quiet=quiet, shorter="--limit, --items, --policies")

    if (size := plan.size(parts)) and not quiet:
        print_text(f"{size}; --limit, --items and --policies make it shorter")
    with keeping(lambda: kept_in(out)):
        return decode(
            plan, out, parts, computing=machine.options(), show=show, tell=None if quiet else print_text
        )


def _show(
    out: Path, decoded: Decoded[FrontierPlan] | None, results: Results | None, *, as_json: bool
) -> None:
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


def _show_results(out: Path, results: Results) -> None:
    from orderlens.analysis.rendering import render
    from orderlens.analysis.tables_frontier import overview

    shown = [overview(table) for table in results.tables if table.name == "frontier"]
    print_text(render(shown, "text", table_width()))
    print_text(results.reading.text())
    for item in results.figures:
        print_text(f"figure {item.name}: {item.why or item.paths[0]}")
    print_text(f"tables: {out / 'tables'} ({', '.join(table.name for table in results.tables)})")
