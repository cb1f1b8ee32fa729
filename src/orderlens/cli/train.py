"""``orderlens train``: a small order-agnostic (or autoregressive) model from text.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from orderlens.cli.command import Output, takes
from orderlens.common.files import refuse_place
from orderlens.runs.options import Device, Split, local_place
from orderlens.runs.request import NEEDED, Opt


@dataclass(frozen=True, kw_only=True)
class Train(Output):
    """Train a small model from text; the folder it writes is a valid --model."""

    data: Annotated[
        Sequence[Path],
        Opt(
            "JSON lines, CSV, Parquet or text file; repeatable.",
            "-d",
            given=NEEDED,
            repeat=True,
            metavar="PATH",
        ),
    ]
    out: Annotated[Path, Opt("Model folder to write.", "-o", metavar="FOLDER", read=local_place)]
    steps: Annotated[int | None, Opt("Number of steps.", shown="200")] = None
    max_minutes: Annotated[float | None, Opt("Number of minutes to train instead; ends fully decayed.")] = (
        None
    )
    attention: Annotated[
        Literal["block-causal", "full", "permutation", "causal"],
        Opt("What a token sees; causal trains an autoregressive model."),
    ] = "block-causal"
    layers: Annotated[int, Opt("Transformer layers.")] = 3
    width: Annotated[int, Opt("Model width.")] = 96
    heads: Annotated[int, Opt("Attention heads.")] = 3
    block_size: Annotated[int, Opt("Tokens per block.")] = 32
    window: Annotated[int, Opt("Tokens per training window.")] = 128
    batch_size: Annotated[int, Opt("Windows per step.")] = 8
    vocab_size: Annotated[int, Opt("Ids of the new tokenizer.")] = 1024
    tokenizer: Annotated[str | None, Opt("A tokenizer.json, or 'tiny' for the bundled one.")] = None
    split: Split = "none"
    seed: Annotated[int, Opt("Keys weights, masks and shuffling.")] = 0
    device: Device = None
    resume: Annotated[bool, Opt("Go on from the checkpoint in --out.")] = False


@takes(Train)
def train(asked: Train) -> None:
    """Train and say what came out."""
    from dataclasses import fields

    from orderlens.cli.console import print_json, print_text, progress_bar
    from orderlens.cli.terminal import keeping
    from orderlens.models.engine.device import pick_device
    from orderlens.training.from_text import TextTraining, train_from_text

    refuse_place(asked.out, folder=True)
    shared = {
        item.name: getattr(asked, item.name) for item in fields(TextTraining) if hasattr(asked, item.name)
    }
    steps = 200 if asked.steps is None and asked.max_minutes is None else asked.steps
    options = TextTraining(**shared | {"steps": steps, "device": str(pick_device(asked.device))})
    shorter = "--steps, --max-minutes" if asked.max_minutes is None else None
    with (
        keeping(lambda: _kept(asked.out)),
        progress_bar("training (%)", 100, quiet=asked.json, shorter=shorter) as advance,
    ):
        summary = train_from_text(
            asked.data, asked.out, options, resume=asked.resume, report=_Percent(advance)
        )
    if asked.json:
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
