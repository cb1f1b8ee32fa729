"""``orderlens generate`` and ``orderlens sweep``: decode prompts under several orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, progress_bar
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.errors import UserInputError
from orderlens.work.engine import Engine

if TYPE_CHECKING:
    from orderlens.models.protocol import Model
    from orderlens.work.options import ProgressSink

_ORDERS = "forced-ar,max-prob,top-margin,random"
_SWEPT = f"{_ORDERS},max-prob:select=argmax"
"""Above T = 0 max-prob means two rules: compare drawn tokens, or choose the position first and then draw."""
LengthOption = Annotated[int, typer.Option("--max-new-tokens", help="Tokens to generate, at most 16384.")]
StopOption = Annotated[
    bool, typer.Option("--stop-at-eos/--no-stop-at-eos", help="End after the block that holds an EOS.")
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
    template: Annotated[
        list[str] | None,
        typer.Option("--template", help="Text with holes to fill instead of --data: 'Once [[8]] and [[4]].'"),
    ] = None,
    seed: opt.SeedOption = 0,
    stop_at_eos: StopOption = True,
    limit: opt.LimitOption = None,
    prefix_tokens: opt.PrefixOption = 32,
    allow_short: opt.ShortOption = False,
    split: opt.SplitOption = "none",
    block_size: opt.BlockOption = None,
    anchor: opt.AnchorOption = None,
    batch_size: opt.BatchOption = None,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    engine: opt.EngineOption = "local",
    workers: opt.WorkersOption = None,
    address: opt.AddressOption = None,
    extend: opt.ExtendOption = False,
    live: Annotated[bool, typer.Option("--live", help="Show the canvas filling (in a terminal).")] = False,
    json: JsonFlag = False,
) -> None:
    """Decode prompts under several reveal orders or policies."""
    _decode(
        out=out,
        model=model,
        data=data,
        orders=orders,
        temperatures=[temperature],
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop_at_eos=stop_at_eos,
        limit=limit,
        prefix_tokens=prefix_tokens,
        allow_short=allow_short,
        split=split,
        block_size=block_size,
        anchor=anchor,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        engine=opt.engine_of(engine, workers, address),
        extend=extend,
        templates=tuple(template or ()),
        live=live,
        as_json=json,
    )


def sweep(
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    data: opt.DataOption = "passages",
    orders: opt.OrdersOption = _SWEPT,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Comma-separated.")
    ] = "0,0.3,0.5,0.7,1,1.3,1.5,2",
    max_new_tokens: LengthOption = 128,
    seed: opt.SeedOption = 0,
    stop_at_eos: StopOption = False,
    limit: opt.LimitOption = None,
    prefix_tokens: opt.PrefixOption = 32,
    allow_short: opt.ShortOption = False,
    split: opt.SplitOption = "none",
    block_size: opt.BlockOption = None,
    anchor: opt.AnchorOption = None,
    batch_size: opt.BatchOption = None,
    device: opt.DeviceOption = None,
    dtype: opt.DtypeOption = None,
    engine: opt.EngineOption = "local",
    workers: opt.WorkersOption = None,
    address: opt.AddressOption = None,
    extend: opt.ExtendOption = False,
    json: JsonFlag = False,
) -> None:
    """Decode prompts over several temperatures into one run."""
    from orderlens.cli.inputs import parse_temperatures

    _decode(
        out=out,
        model=model,
        data=data,
        orders=orders,
        temperatures=parse_temperatures(temperatures),
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop_at_eos=stop_at_eos,
        limit=limit,
        prefix_tokens=prefix_tokens,
        allow_short=allow_short,
        split=split,
        block_size=block_size,
        anchor=anchor,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        engine=opt.engine_of(engine, workers, address),
        extend=extend,
        as_json=json,
    )


def _decode(
    *,
    out: str,
    model: str,
    data: str,
    orders: str,
    temperatures: Sequence[float],
    max_new_tokens: int,
    seed: int,
    stop_at_eos: bool,
    limit: int | None,
    prefix_tokens: int,
    allow_short: bool,
    split: str,
    block_size: int | None,
    anchor: str | None,
    batch_size: int | None,
    device: str | None,
    dtype: str | None,
    engine: Engine,
    extend: bool,
    templates: Sequence[str] = (),
    live: bool = False,
    as_json: bool,
) -> None:
    """Decode and print: what ``generate`` and ``sweep`` share."""
    from orderlens import api
    from orderlens.cli.inputs import load_inputs, parse_anchor, template_inputs
    from orderlens.cli.summary import show_summary
    from orderlens.datafiles import SplitRule
    from orderlens.rowfiles import check_split
    from orderlens.work.job import check_generation, deployable

    chosen = deployable(orders)
    check_generation(max_new_tokens, temperatures)  # before the model is loaded
    live = live and _can_be_live(engine, as_json=as_json)
    where = parse_anchor(anchor)
    rule = SplitRule(prefix_tokens, 0, allow_short, check_split(split))
    inputs = (
        template_inputs(model, templates, device, dtype)
        if templates
        else load_inputs(model, data, rule, limit, device, dtype, least_target=0)
    )
    with (
        keeping(lambda: kept_in(out)),
        progress_bar(
            "generating (tokens)", None, quiet=as_json or live, shorter="--limit, --max-new-tokens"
        ) as bar,
        _canvas(bar, inputs.model, live=live) as shown,
    ):
        run = api.generate(
            inputs.model,
            inputs.data.samples,
            chosen,
            max_new_tokens=max_new_tokens,
            temperature=temperatures,
            seed=seed,
            stop_at_eos=stop_at_eos,
            block_size=block_size,
            anchor=where,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            engine=engine,
            out=out,
            extend=extend,
            data_record=inputs.data.record(),
            progress=shown,
        )
    show_summary(run, out=str(out), as_json=as_json)


def _can_be_live(engine: Engine, *, as_json: bool) -> bool:
    """Whether the canvas can be shown; a note says why not where that is nobody's mistake."""
    from orderlens.cli.console import print_line, stderr

    if engine.kind != "local" or (engine.workers or 1) > 1:
        raise UserInputError("--live shows what this process decodes; leave out --engine and --workers")
    if as_json or not stderr.is_terminal:
        print_line("--live needs a terminal and no --json; decoding without it")
        return False
    return True


@contextmanager
def _canvas(bar: ProgressSink, model: Model, *, live: bool) -> Iterator[ProgressSink]:
    if not live:
        yield bar
        return
    from orderlens.cli.console import stderr
    from orderlens.cli.live import live_progress

    with live_progress(bar, stderr, lambda token: model.tokenizer.decode([token])) as shown:
        yield shown
