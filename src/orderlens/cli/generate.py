"""``orderlens generate`` and ``orderlens sweep``: decode prompts under several orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, progress_bar
from orderlens.cli.interrupt import keeping, kept_in
from orderlens.cli.option_groups import Grid, Machine, Texts, computing
from orderlens.errors import UserInputError

if TYPE_CHECKING:
    from orderlens.models.protocol import Model
    from orderlens.runs.options import ProgressSink
    from orderlens.texts.samples import Sample

_ORDERS = "forced-ar,max-prob,top-margin,random"
_SWEPT = f"{_ORDERS},max-prob:select=argmax"
"""Above T = 0 max-prob means two rules: compare drawn tokens, or choose the position first and then draw."""
StopOption = Annotated[
    bool, typer.Option("--stop-at-eos/--no-stop-at-eos", help="End after the block that holds an EOS.")
]


@dataclass(frozen=True, slots=True)
class Decoding:
    """What ``generate`` and ``sweep`` ask for alike."""

    texts: Texts
    grid: Grid
    machine: Machine
    max_new_tokens: int
    seed: int
    stop_at_eos: bool
    chat: bool
    extend: bool


def generate(
    *,
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    orders: opt.OrdersOption = _ORDERS,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="A prompt instead of --data; may be given several times."),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option("--template", help="Text with holes to fill instead of --data: 'Once [[8]] and [[4]].'"),
    ] = None,
    max_new_tokens: opt.LengthOption = 128,
    seed: opt.SeedOption = 0,
    stop_at_eos: StopOption = True,
    chat: opt.ChatOption = False,
    texts: Texts,
    grid: Grid,
    machine: Machine,
    extend: opt.ExtendOption = False,
    live: Annotated[bool, typer.Option("--live", help="Show the canvas filling (in a terminal).")] = False,
    json: JsonFlag = False,
) -> None:
    """Decode prompts under several reveal orders or policies."""
    from orderlens.texts.samples import Sample

    if (prompt or template) and texts != Texts():
        raise UserInputError(
            "--prompt and --template take the place of --data: leave out --data, --limit and splitting"
        )
    asked = Decoding(texts, grid, machine, max_new_tokens, seed, stop_at_eos, chat, extend)
    live = live and _can_be_live(machine, as_json=json)
    given = [Sample(f"prompt-{place}", text) for place, text in enumerate(prompt or ())]
    given += [Sample(str(place), "", template=text) for place, text in enumerate(template or ())]
    _decode(out, model, orders, [temperature], asked, as_json=json, given=given, live=live)


def sweep(
    *,
    out: opt.OutOption,
    model: opt.ModelOption = "tiny",
    orders: opt.OrdersOption = _SWEPT,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Comma-separated.")
    ] = "0,0.3,0.5,0.7,1,1.3,1.5,2",
    max_new_tokens: opt.LengthOption = 128,
    seed: opt.SeedOption = 0,
    stop_at_eos: StopOption = False,
    chat: opt.ChatOption = False,
    texts: Texts,
    grid: Grid,
    machine: Machine,
    extend: opt.ExtendOption = False,
    json: JsonFlag = False,
) -> None:
    """Decode prompts over several temperatures into one run."""
    asked = Decoding(texts, grid, machine, max_new_tokens, seed, stop_at_eos, chat, extend)
    _decode(out, model, orders, opt.temperatures(temperatures), asked, as_json=json)


def _decode(
    out: str,
    model: str,
    orders: str,
    temperatures: Sequence[float],
    asked: Decoding,
    *,
    as_json: bool,
    given: Sequence[Sample] = (),
    live: bool = False,
) -> None:
    """Decode and print: what ``generate`` and ``sweep`` share."""
    from orderlens import api
    from orderlens.cli.inputs import given_inputs, load_inputs
    from orderlens.cli.summary import show_summary
    from orderlens.runs.job import check_generation, deployable

    chosen, keywords = deployable(orders), computing(out, asked.grid, asked.machine)
    check_generation(asked.max_new_tokens, temperatures, asked.seed)  # before the model is loaded
    inputs = (
        given_inputs(model, given, asked.machine) if given else load_inputs(model, asked.texts, asked.machine)
    )
    quiet, shorter = as_json or live, "--limit, --max-new-tokens"
    with (
        keeping(lambda: kept_in(out)),
        progress_bar("generating (tokens)", None, quiet=quiet, shorter=shorter) as bar,
        _canvas(bar, inputs.model, live=live) as shown,
    ):
        run = api.generate(
            inputs.model,
            inputs.data.samples,
            chosen,
            max_new_tokens=asked.max_new_tokens,
            temperature=temperatures,
            seed=asked.seed,
            stop_at_eos=asked.stop_at_eos,
            chat=asked.chat,
            extend=asked.extend,
            data_record=inputs.data.record(),
            **keywords | {"progress": shown},
        )
    show_summary(run, out=str(out), as_json=as_json)


def _can_be_live(machine: Machine, *, as_json: bool) -> bool:
    """Whether the canvas can be shown; a note says why not where that is nobody's mistake."""
    from orderlens.cli.console import print_line, stderr

    if machine.engine != "local" or (machine.workers or 1) > 1:
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
