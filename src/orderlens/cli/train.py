"""``orderlens train``: a small order-agnostic (or autoregressive) model from text.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from orderlens.cli.command import Output, takes
from orderlens.cli.terminal import keeping, print_json, print_text
from orderlens.common.files import refuse_place
from orderlens.runs.options import BLOCK_SIZE, FOLDER_OUT, Device, Split
from orderlens.runs.request import NEEDED, Opt

TextFiles = Annotated[
    Sequence[Path],
    Opt(
        "Training texts: a JSON Lines, CSV, Parquet or text file; repeatable.",
        "-d",
        given=NEEDED,
        repeat=True,
        metavar="PATH",
    ),
]
ModelWidth = Annotated[int, Opt("Width of the model.")]


@dataclass(frozen=True, kw_only=True)
class Train(Output):
    """Train a small model on texts; pass its folder to other commands as --model."""

    data: TextFiles
    out: Annotated[Path, FOLDER_OUT]
    steps: Annotated[int | None, Opt("Number of training steps.", shown="200")] = None
    max_minutes: Annotated[
        float | None, Opt("Training time in minutes, instead of --steps; the learning rate decays within it.")
    ] = None
    attention: Annotated[
        Literal["block-causal", "full", "permutation", "causal"],
        Opt("Attention mask; causal trains an autoregressive model."),
    ] = "block-causal"
    layers: Annotated[int, Opt("Number of transformer layers.")] = 3
    width: ModelWidth = 96
    heads: Annotated[int, Opt("Number of attention heads.")] = 3
    block_size: Annotated[int, BLOCK_SIZE] = 32
    window: Annotated[int, Opt("Tokens per training window.")] = 128
    batch_size: Annotated[int, Opt("Windows per step.")] = 8
    vocab_size: Annotated[int, Opt("Vocabulary size of the new tokenizer.")] = 1024
    tokenizer: Annotated[
        str | None, Opt("A tokenizer.json to use, or 'tiny' for the bundled one.", shown="train one")
    ] = None
    split: Split = "none"
    seed: Annotated[int, Opt("Seed of initial weights, masks and shuffling.")] = 0
    device: Device = None
    resume: Annotated[bool, Opt("Resume from the checkpoint in --out.")] = False


@takes(Train)
def train(request: Train) -> None:
    """Train and print a summary."""
    from dataclasses import fields

    from orderlens.cli.console import progress_bar
    from orderlens.models.engine.device import pick_device
    from orderlens.training.from_text import TextTraining, train_from_text

    refuse_place(request.out, folder=True)
    shared = {
        item.name: getattr(request, item.name) for item in fields(TextTraining) if hasattr(request, item.name)
    }
    steps = 200 if request.steps is None and request.max_minutes is None else request.steps
    options = TextTraining(**shared | {"steps": steps, "device": str(pick_device(request.device))})
    shorter = "--steps, --max-minutes" if request.max_minutes is None else None
    with (
        keeping(lambda: _kept(request.out)),
        progress_bar("training (%)", 100, quiet=request.json, shorter=shorter) as advance,
    ):
        summary = train_from_text(
            request.data, request.out, options, resume=request.resume, report=_Percent(advance)
        )
    if request.json:
        print_json(summary)
    else:
        print_text(_describe(summary))


def _kept(out: Path) -> str:
    """Say which step of an interrupted training is stored."""
    from orderlens.training.steps import CHECKPOINT, load_checkpoint

    if not (out / CHECKPOINT).is_file():
        return f"no step was finished, so {out} has no model yet; run the same command again"
    step = load_checkpoint(out / CHECKPOINT)["step"]
    return f"step {step} is kept in {out}; the same command with --resume continues there"


class _Percent:
    """Shows training progress in per cent on a progress bar."""

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
