"""``orderlens generate`` and ``orderlens sweep``: decode prompts under several orders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, progress_bar

_ORDERS = "forced-ar,max-prob,top-margin,random"
LengthOption = Annotated[int, typer.Option("--max-new-tokens", help="Tokens to generate, at most 16384.")]
StopOption = Annotated[
    bool, typer.Option("--eos-stop/--no-eos-stop", help="End after the block that holds an EOS.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("generate")(generate)
    app.command("sweep")(sweep)


def generate(
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    data: opt.DataOption = "passages",
    orders: opt.OrdersOption = _ORDERS,
    max_new_tokens: LengthOption = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: opt.SeedOption = 0,
    eos_stop: StopOption = True,
    limit: opt.LimitOption = None,
    prefix_tokens: opt.PrefixOption = 32,
    block_size: opt.BlockOption = None,
    anchor: opt.AnchorOption = None,
    batch_size: opt.BatchOption = 32,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    json: JsonFlag = False,
) -> None:
    """Decode prompts under several reveal orders, one token per step."""
    _decode(
        out, model, data, orders, max_new_tokens, [temperature], seed, eos_stop, limit, prefix_tokens,
        block_size, anchor, batch_size, device, dtype, json,
    )  # fmt: skip


def sweep(
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    data: opt.DataOption = "passages",
    orders: opt.OrdersOption = _ORDERS,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Comma-separated.")
    ] = "0,0.3,0.5,0.7,1,1.3,1.5,2",
    max_new_tokens: LengthOption = 128,
    seed: opt.SeedOption = 0,
    eos_stop: StopOption = False,
    limit: opt.LimitOption = None,
    prefix_tokens: opt.PrefixOption = 32,
    block_size: opt.BlockOption = None,
    anchor: opt.AnchorOption = None,
    batch_size: opt.BatchOption = 32,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    json: JsonFlag = False,
) -> None:
    """Decode prompts over several temperatures into one run."""
    from orderlens.cli.inputs import parse_temperatures

    values = parse_temperatures(temperatures)
    _decode(
        out, model, data, orders, max_new_tokens, values, seed, eos_stop, limit, prefix_tokens,
        block_size, anchor, batch_size, device, dtype, json,
    )  # fmt: skip


def _decode(
    out: Path, model: str, data: str, orders: str, max_new_tokens: int, temperatures: Sequence[float], seed: int,
    eos_stop: bool, limit: int | None, prefix_tokens: int, block_size: int | None, anchor: str | None,
    batch_size: int, device: str | None, dtype: str | None, as_json: bool,
) -> None:  # fmt: skip
    from orderlens import api
    from orderlens.cli.inputs import load_inputs, parse_anchor
    from orderlens.cli.summary import show_summary
    from orderlens.datafiles import SplitRule
    from orderlens.decode.generate import GenerationSettings
    from orderlens.orders import parse_orders

    chosen = parse_orders(orders)
    api.refuse_oracles(chosen)
    for value in temperatures:
        GenerationSettings(max_new_tokens, value)  # refuses bad numbers before the model is loaded
    where = parse_anchor(anchor)
    inputs = load_inputs(model, data, SplitRule(prefix_tokens, 1, True), limit, device, dtype)
    with progress_bar("generating (tokens)", None, quiet=as_json) as bar:
        run = api.generate(
            inputs.model,
            inputs.data.samples,
            chosen,
            max_new_tokens=max_new_tokens,
            temperature=temperatures,
            seed=seed,
            stop_at_eos=eos_stop,
            block_size=block_size,
            anchor=where,
            batch_size=batch_size,
            out=out,
            data_record=inputs.data.record(),
            progress=bar,
        )
    show_summary(run, out=str(out), as_json=as_json)
