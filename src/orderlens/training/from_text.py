"""From text files to a model folder: tokenizer, windows, training, validation, export.

``orderlens train`` runs this. All files go into one folder, so that a stopped run can be resumed there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from orderlens.common.files import make_folder, replacing, storing
from orderlens.common.rng import keyed_generator
from orderlens.errors import RunError, UserInputError
from orderlens.models.files.tokenizer import TOKENIZER, FastTokenizer
from orderlens.models.small.folder import bundled_folder, save_folder
from orderlens.models.small.network import TransformerConfig
from orderlens.texts.rows import TextSplit
from orderlens.training.data import (
    EOS_ID,
    EOS_TOKEN,
    MASK_ID,
    MASK_TOKEN,
    Tokens,
    WindowMixture,
    pack,
    read_corpus,
    train_tokenizer,
    write_shard,
)
from orderlens.training.loop import LoopSettings, Trainer
from orderlens.training.optimiser import LearningRateSchedule, OptimiserSettings
from orderlens.training.steps import CHECKPOINT, METRICS, Report
from orderlens.training.validate import ORDERS, mean_log_prob

HELDOUT_EVERY = 20
PADDED_SHARE = 0.07
_LARGEST = {
    "layers": 256,
    "width": 16_384,
    "heads": 1024,
    "block_size": 65_536,
    "window": 65_536,
    "batch_size": 65_536,
}
"""Maximum sizes; larger values are taken for mistakes."""
LARGEST_VOCABULARY = 65_536
"""Windows store ids in 16 bits."""
WINDOWS, HELDOUT, CORPUS = "windows", "heldout.npy", "corpus.json"


@dataclass(frozen=True, slots=True)
class TextTraining:
    """Settings of a training run; the defaults train a small model on a CPU in about a minute.

    Attributes:
        attention: ``causal`` is autoregressive, the others are order-agnostic.
        vocab_size: maximum number of ids of the new tokenizer (a short text gives fewer).
        tokenizer: a ``tokenizer.json`` to use instead, or ``tiny`` for the bundled one.
        split: how a ``.txt`` file is split into documents.
        int8: store the weights as int8 with a scale per row.
    """

    steps: int | None = None
    max_minutes: float | None = None
    attention: Literal["block-causal", "full", "permutation", "causal"] = "block-causal"
    layers: int = 3
    width: int = 96
    heads: int = 3
    block_size: int = 32
    window: int = 128
    batch_size: int = 8
    vocab_size: int = 1024
    tokenizer: str | None = None
    matrix_lr: float = 5e-3
    vector_lr: float = 3e-3
    seed: int = 0
    device: str = "cpu"
    split: TextSplit = "none"
    int8: bool = True

    def __post_init__(self) -> None:
        for name, most in _LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                word = name.replace("_", " ")
                raise UserInputError(
                    f"{word} {getattr(self, name)} is out of range; allowed are 1 to {most:,}"
                )
        if self.width % (2 * self.heads):
            raise UserInputError(
                f"width {self.width} cannot be split into {self.heads} heads of even width; "
                f"choose a multiple of {2 * self.heads}"
            )
        if self.window % self.block_size:
            raise UserInputError(
                f"window {self.window} is not a multiple of the block size {self.block_size}; "
                "choose a multiple"
            )
        if not 300 <= self.vocab_size <= LARGEST_VOCABULARY:
            raise UserInputError(
                f"vocabulary size {self.vocab_size} is out of range; allowed are 300 to {LARGEST_VOCABULARY}"
            )

    def config(self, vocab_size: int) -> TransformerConfig:
        """Return the network's shape."""
        ffn = -(-8 * self.width // 3 // 32) * 32
        return TransformerConfig(
            vocab_size=vocab_size, n_layers=self.layers, width=self.width, n_heads=self.heads, ffn_width=ffn,
            block_size=self.block_size, attention=self.attention,
        )  # fmt: skip


def train_from_text(
    files: Sequence[Path],
    out: Path,
    options: TextTraining,
    *,
    resume: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train on ``files`` and write a model folder to ``out``; return a summary with validation losses."""
    schedule = LearningRateSchedule(
        options.steps, options.max_minutes, warmup_steps=max(1, min(100, (options.steps or 400) // 10))
    )
    if (out / CHECKPOINT).exists() and not resume:
        raise RunError(
            f"{out} already contains a training run; add --resume to continue it, or choose another folder"
        )
    if not resume:
        prepare(files, out, options)
    trainer = make_trainer(out, options, schedule)
    if resume:
        trainer.resume()
    last = trainer.run(report)
    return _finish(trainer, out, options, last)


def prepare(files: Sequence[Path], out: Path, options: TextTraining) -> None:
    """Write the tokenizer and the windows; every 20th document is held out."""
    corpus = read_corpus(files, options.split)
    if not corpus.documents:
        raise UserInputError(
            f"no text in {', '.join(str(path) for path in files)}; give files with non-empty texts"
        )
    train, heldout = _split(corpus.documents)
    make_folder(out)
    with replacing(out / CORPUS) as fresh:
        fresh.write_text(json.dumps(corpus.record), encoding="utf-8")
    tokenizer = _tokenizer(options, train)
    with storing(out):
        (out / METRICS).unlink(missing_ok=True)
    with replacing(out / TOKENIZER) as fresh:
        tokenizer.save(fresh)
    rng = keyed_generator(options.seed, "pack")
    sets = [
        pack(tokenizer.encode_many(texts), options.window, EOS_ID, PADDED_SHARE, rng)
        for texts in (train, heldout)
    ]
    write_shard(out / WINDOWS, "text", "0", sets[0])
    with replacing(out / HELDOUT) as fresh, fresh.open("wb") as stream:
        np.save(stream, sets[1])


def _split(documents: Sequence[str]) -> tuple[list[str], list[str]]:
    if len(documents) < HELDOUT_EVERY:
        cut = [len(text) - len(text) // HELDOUT_EVERY for text in documents]
        return (
            [text[:end] for text, end in zip(documents, cut, strict=True)],
            [text[end:] for text, end in zip(documents, cut, strict=True)],
        )
    heldout = list(documents[HELDOUT_EVERY - 1 :: HELDOUT_EVERY])
    return [text for index, text in enumerate(documents, 1) if index % HELDOUT_EVERY], heldout


def _tokenizer(options: TextTraining, texts: Sequence[str]) -> FastTokenizer:
    if options.tokenizer is None:
        return FastTokenizer(train_tokenizer(texts, options.vocab_size), text_only=True)
    if options.tokenizer == "tiny":
        return FastTokenizer.from_file(bundled_folder("tiny") / TOKENIZER)
    return _check_tokenizer(FastTokenizer.from_file(Path(options.tokenizer)), options.tokenizer)


def _check_tokenizer(tokenizer: FastTokenizer, name: str) -> FastTokenizer:
    """Refuse a tokenizer whose mask and EOS ids are ordinary tokens, or that has too many ids."""
    if (tokenizer.id_of(MASK_TOKEN), tokenizer.id_of(EOS_TOKEN)) != (MASK_ID, EOS_ID):
        raise UserInputError(
            f"tokenizer '{name}': ids {MASK_ID} and {EOS_ID} must be {MASK_TOKEN} and {EOS_TOKEN}; omit "
            "--tokenizer to train one, or give 'tiny' or the tokenizer.json of a model that orderlens trained"
        )
    if tokenizer.largest_id >= LARGEST_VOCABULARY:
        most = LARGEST_VOCABULARY - 1
        raise UserInputError(
            f"tokenizer '{name}' has ids up to {tokenizer.largest_id}; allowed are ids up to {most}"
        )
    return tokenizer


def make_trainer(out: Path, options: TextTraining, schedule: LearningRateSchedule) -> Trainer:
    """Return the training run of a folder that ``prepare`` filled."""
    cuda = torch.device(options.device).type == "cuda"
    loop = LoopSettings(
        window=options.window, seed=options.seed, device=options.device, compiled=cuda,
        attention="flex" if cuda else "dense", log_every=10, validate_every=50,
    )  # fmt: skip
    vocab_size = FastTokenizer.from_file(out / TOKENIZER).vocab_size
    mixture = WindowMixture(out / WINDOWS, {"text": 1.0}, options.batch_size, options.seed)
    rates = OptimiserSettings(matrix_lr=options.matrix_lr, vector_lr=options.vector_lr)
    heldout: Tokens = np.load(out / HELDOUT)
    return Trainer(options.config(vocab_size), loop, schedule, rates, mixture, heldout, out)


def _finish(trainer: Trainer, out: Path, options: TextTraining, last: dict[str, Any]) -> dict[str, Any]:
    model = trainer.model.cpu()
    notes = {"steps": trainer.step, "seconds": round(trainer.elapsed_s, 1), "training": asdict(options)}
    save_folder(out, model, FastTokenizer.from_file(out / TOKENIZER), int8=options.int8, notes=notes)
    return {
        "out": str(out),
        "steps": trainer.step,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": _corpus_record(out),
        "train_windows": trainer.mixture.phases[-1].size("text"),
        "loss": last.get("loss", math.nan),
        "heldout_nats_per_token": dict(_order_figures(trainer, options)),
    }


def _corpus_record(out: Path) -> dict[str, Any]:
    """Return the record of the data that ``prepare`` wrote, or an empty one if the file is missing."""
    path = out / CORPUS
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return record


def _order_figures(trainer: Trainer, options: TextTraining, limit: int = 8) -> Iterator[tuple[str, float]]:
    """Yield log P/n of held-out windows per order; the first block is the prompt. Padding EOS counts too."""
    windows = torch.from_numpy(trainer.heldout[:limit].astype("int64"))
    orders = ("forced-ar",) if options.attention == "causal" else ORDERS
    for order in orders if len(windows) else ():
        values = mean_log_prob(trainer.model, windows, min(options.block_size, options.window // 2), order)
        yield order, round(float(values.mean()), 4)
