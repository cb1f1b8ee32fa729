"""``orderlens score``: fixed targets under several orders."""

from __future__ import annotations

from typing import Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, progress_bar
from orderlens.cli.interrupt import keeping, kept_in


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("score")(score)


def score(
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    data: opt.DataOption = "passages",
    orders: opt.OrdersOption = "forced-ar,reverse-ar,random,oracle-max-q,oracle-margin,oracle-min-q",
    limit: opt.LimitOption = None,
    prefix_tokens: opt.PrefixOption = 32,
    target_tokens: opt.TargetOption = 128,
    allow_short: opt.ShortOption = False,
    split: opt.SplitOption = "none",
    block_size: opt.BlockOption = None,
    anchor: opt.AnchorOption = None,
    batch_size: opt.BatchOption = None,
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
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    engine: opt.EngineOption = "local",
    workers: opt.WorkersOption = None,
    address: opt.AddressOption = None,
    extend: opt.ExtendOption = False,
    json: JsonFlag = False,
) -> None:
    """Score fixed targets under several reveal orders and store every reveal."""
    from orderlens import api
    from orderlens.cli.inputs import load_inputs, parse_anchor
    from orderlens.cli.summary import show_summary
    from orderlens.datafiles import SplitRule
    from orderlens.policies import parse_policies
    from orderlens.rowfiles import check_split

    chosen = parse_policies(orders)
    where = parse_anchor(anchor)
    rule = SplitRule(prefix_tokens, target_tokens, allow_short, check_split(split))
    inputs = load_inputs(model, data, rule, limit, device, dtype)
    with (
        keeping(lambda: kept_in(out)),
        progress_bar("scoring (tokens)", None, quiet=json, shorter="--limit, --target-tokens") as bar,
    ):
        run = api.score(
            inputs.model,
            inputs.data.samples,
            chosen,
            block_size=block_size,
            anchor=where,
            batch_size=batch_size,
            circulation=circulation,
            couplings=couplings,
            noise_floor=noise_floor,
            device=device,
            dtype=dtype,
            engine=opt.engine_of(engine, workers, address),
            out=out,
            extend=extend,
            data_record=inputs.data.record(),
            progress=bar,
        )
    show_summary(run, out=str(out), as_json=json)
