"""``orderlens frontier``: compare policies by quality and tokens per pass.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orderlens.cli.command import Output, takes
from orderlens.cli.studies import opened_bars
from orderlens.cli.terminal import keeping, kept_in, print_json, print_text
from orderlens.common.files import refuse_place
from orderlens.runs.options import (
    COUPLINGS,
    DATA,
    POLICIES,
    PREFIX_TOKENS,
    RESUMED_OUT,
    TARGET_TOKENS,
    TASKS,
    BlockSize,
    Bootstrap,
    Computing,
    Machine,
    ModelName,
    Seed,
    Temperature,
    evaluator_option,
    limit_option,
)
from orderlens.runs.request import Opt

if TYPE_CHECKING:
    from orderlens.studies.frontier_plan import FrontierPlan
    from orderlens.studies.results import Results
    from orderlens.studies.runner import Decoded

COMPARED = (
    "max-prob+threshold=0.9",
    "max-prob+threshold=0.7",
    "forced-ar",
    "forced-ar+top=4",
    "random+top=4",
)


@dataclass(frozen=True, kw_only=True)
class Frontier(Machine, Output):
    """Compare policies by quality and tokens per pass: likelihood, external perplexity, accuracy, endings.

    All forward passes count. The same command resumes interrupted work.
    """

    out: Annotated[Path, RESUMED_OUT]
    model: ModelName
    policies: Annotated[Sequence[str], Opt(POLICIES)] = COMPARED
    ladder: Annotated[
        str, Opt("Order of the reference policies ORDER+top=K, or 'none' to leave them out.")
    ] = "max-prob"
    rungs: Annotated[Sequence[int], Opt("Values of K, separated by commas.")] = (1, 2, 4, 8)
    data: Annotated[str, DATA] = "passages"
    limit: Annotated[int, limit_option()] = 24
    prefix_tokens: Annotated[int, PREFIX_TOKENS] = 32
    target_tokens: Annotated[int, TARGET_TOKENS] = 64
    tasks: Annotated[Sequence[str], replace(TASKS, help=f"{TASKS.help} 'none' leaves this part out.")] = (
        "arith",
        "choice",
    )
    items: Annotated[int, Opt("Maximum number of items per task.")] = 24
    couplings: Annotated[int, COUPLINGS] = 4
    evaluator: Annotated[str, evaluator_option()] = "tiny-ar"
    temperature: Temperature = 0.0
    seed: Seed = 0
    parts: Annotated[
        Sequence[str] | None,
        Opt("Parts to run, out of likelihood, text, tasks, external and results.", shown="all"),
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
def frontier(request: Frontier) -> None:
    """Decode the parts that are missing, then write the results."""
    from orderlens.studies.frontier_plan import FrontierPlan

    out = request.out
    refuse_place(out, folder=True)
    wanted, plan = FrontierPlan.in_order(request.parts), request.plan()
    decoded = None if wanted == ["results"] else _decode(plan, wanted, request)
    results = None
    if "results" in wanted:
        from orderlens.metrics.estimate import Resampling
        from orderlens.studies.results import frontier_results

        later = f"the traces are kept; make the results with: orderlens frontier --out {out} --parts results"
        with keeping(lambda: later):
            results = frontier_results(out, Resampling(request.bootstrap))
    _show_frontier(out, decoded, results, as_json=request.json)


def _decode(plan: "FrontierPlan", parts: list[str], request: Frontier) -> "Decoded[FrontierPlan]":
    from orderlens.studies.runner import decode

    quiet, shorter = request.json, "--limit, --items, --policies"
    if (size := plan.size(parts)) and not quiet:
        print_text(f"{size}; --limit, --items and --policies make it shorter")
    computing = Computing(
        device=request.device, dtype=request.dtype, weights=request.weights, engine=request.chosen_engine
    )
    with keeping(lambda: kept_in(request.out)):
        return decode(
            plan,
            request.out,
            parts,
            computing=computing,
            show=opened_bars(shorter, quiet=quiet),
            on_forecast=None if quiet else print_text,
        )


def _show_frontier(
    out: Path, decoded: "Decoded[FrontierPlan] | None", results: "Results | None", *, as_json: bool
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


def _show_results(out: Path, results: "Results") -> None:
    from orderlens.analysis.frontier import overview
    from orderlens.analysis.rendering import render
    from orderlens.cli.console import table_width

    shown = [overview(table) for table in results.tables if table.name == "frontier"]
    shown += [table for table in results.tables if table.name in ("speed", "speed-of-light")]
    print_text(render(shown, "text", table_width()))
    print_text(results.reading.text())
    for item in results.figures:
        print_text(f"figure {item.name}: {item.why or item.paths[0]}")
    print_text(f"tables: {out / 'tables'} ({', '.join(table.name for table in results.tables)})")
