"""``orderlens score``: fixed targets under several orders."""

from __future__ import annotations

from typing import Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, progress_bar
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.cli.option_groups import Grid, Machine, Texts, computing


def score(
    *,
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    orders: opt.OrdersOption = "forced-ar,reverse-ar,random,oracle-max-q,oracle-margin,oracle-min-q",
    texts: Texts,
    target_tokens: opt.TargetOption = 128,
    circulation: Annotated[
        int, typer.Option("--circulation", help="Measure so many adjacent swaps per sample and order.")
    ] = 0,
    couplings: Annotated[
        int,
        typer.Option("--couplings", help="Reveal so many jointly committed sets per trace one by one."),
    ] = 0,
    noise_floor: Annotated[
        bool, typer.Option("--noise-floor", help="Rescore each path under harmless perturbations.")
    ] = False,
    chat: opt.ChatOption = False,
    grid: Grid,
    machine: Machine,
    extend: opt.ExtendOption = False,
    json: JsonFlag = False,
) -> None:
    """Score fixed targets under several reveal orders and store every reveal."""
    from orderlens import api
    from orderlens.cli.inputs import load_inputs
    from orderlens.cli.summary import show_summary
    from orderlens.rules import parse_policies

    chosen, asked = parse_policies(orders), computing(out, grid, machine)
    inputs = load_inputs(model, texts, machine, target_tokens, least_target=1)
    with (
        keeping(lambda: kept_in(out)),
        progress_bar("scoring (tokens)", None, quiet=json, shorter="--limit, --target-tokens") as bar,
    ):
        run = api.score(
            inputs.model,
            inputs.data.samples,
            chosen,
            circulation=circulation,
            couplings=couplings,
            noise_floor=noise_floor,
            chat=chat,
            extend=extend,
            data_record=inputs.data.record(),
            **asked | {"progress": bar},
        )
    show_summary(run, out=str(out), as_json=json)
