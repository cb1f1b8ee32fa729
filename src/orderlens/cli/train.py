"""``orderlens train``: a small order-agnostic (or autoregressive) model from text."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orderlens.cli import options as opt
from orderlens.cli.console import JsonFlag, print_json, print_text, progress_bar
from orderlens.cli.interrupt import keeping
from orderlens.common.files import refuse_place


class AttentionChoice(StrEnum):
    """What the model may see."""

    block_causal = "block-causal"
    full = "full"
    permutation = "permutation"
    causal = "causal"


def train(
    data: Annotated[
        list[Path], typer.Option("--data", "-d", help="JSON lines, CSV, Parquet or text file; repeatable.")
    ],
    out: Annotated[Path, opt.out_option("Model folder to write.")],
    steps: Annotated[int | None, typer.Option("--steps", help="Number of steps [default: 200].")] = None,
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", help="Train for so long instead; ends fully decayed.")
    ] = None,
    attention: Annotated[
        AttentionChoice, typer.Option("--attention", help="causal trains an autoregressive model.")
    ] = AttentionChoice.block_causal,
    layers: Annotated[int, typer.Option("--layers", help="Transformer layers.")] = 3,
    width: Annotated[int, typer.Option("--width", help="Model width.")] = 96,
    heads: Annotated[int, typer.Option("--heads", help="Attention heads.")] = 3,
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens per block.")] = 32,
    window: Annotated[int, typer.Option("--window", help="Tokens per training window.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Windows per step.")] = 8,
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="Ids of the new tokenizer.")] = 1024,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="A tokenizer.json, or 'tiny' for the bundled one.")
    ] = None,
    split: opt.SplitOption = "none",
    seed: Annotated[int, typer.Option("--seed", help="Keys weights, masks and shuffling.")] = 0,
    device: opt.DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    json: JsonFlag = False,
) -> None:
    """Train a small model from text; the folder it writes is a valid --model."""
    from orderlens.models.engine.device import pick_device
    from orderlens.texts.rows import check_split
    from orderlens.training.from_text import TextTraining, train_from_text

    refuse_place(out, folder=True)
    if steps is None and max_minutes is None:
        steps = 200
    options = TextTraining(
        steps=steps, max_minutes=max_minutes, attention=attention.value, layers=layers, width=width,
        heads=heads, block_size=block_size, window=window, batch_size=batch_size, vocab_size=vocab_size,
        tokenizer=tokenizer, split=check_split(split), seed=seed, device=str(pick_device(device)),
    )  # fmt: skip
    shorter = "--steps, --max-minutes" if max_minutes is None else None
    with (
        keeping(lambda: _kept(out)),
        progress_bar("training (%)", 100, quiet=json, shorter=shorter) as advance,
    ):
        summary = train_from_text(data, out, options, resume=resume, report=_Percent(advance))
    if json:
        print_json(summary)
    else:
        print_text(_describe(summary))


def _kept(out: Path) -> str:
    """Say at which step an interrupted training stands."""
    from orderlens.training.steps import CHECKPOINT, load_checkpoint

    if not (out / CHECKPOINT).is_file():
        return f"no step was finished, so {out} holds no model yet; the same command starts again"
    step = load_checkpoint(out / CHECKPOINT)["step"]
    return f"step {step} is kept in {out}; the same command with --resume goes on there"


class _Percent:
    """Turns metrics lines into whole per cents on a progress bar."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        self._advance, self._shown = advance, 0

    def __call__(self, line: dict[str, Any]) -> None:
        percent = min(100, int(100 * line["progress"]))
        self._advance(percent - self._shown)
        self._shown = percent


def _describe(summary: dict[str, Any]) -> str:
    from orderlens.texts.loading import describe_documents

    orders = ", ".join(f"{order} {value:.3f}" for order, value in summary["heldout_nats_per_token"].items())
    return (
        f"{summary['out']}: {summary['parameters'] / 1e6:.2f} M parameters, {summary['steps']} steps, "
        f"last loss {summary['loss']:.3f} nats per token\nheld-out log P/n: {orders or 'no held-out text'}\n"
        f"{describe_documents(summary['data'])}"
        f"use it with --model {summary['out']}"
    )
