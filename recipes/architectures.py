"""Does the order matter equally for every architecture? Train, score and compare small models.

The models share shape, tokenizer, corpus, optimiser and batches; only attention differs: block-causal, full
attention, permutation-trained (XLNet's two streams) and an autoregressive twin. A second block-causal model
with another seed shows the differences due to training randomness. One command runs all stages and skips
finished ones:

    PYTHONPATH=src python recipes/architectures.py all --corpus FOLDER --texts C4.jsonl.gz --work WORK

Separate stages: prepare, train, score, census, compare. All run from the source tree with torch, pyarrow,
pandas, scipy, tokenizers and safetensors. Blocks have 32 tokens; models that see the whole canvas are also
decoded in one block. A GPU needs about 5 minutes; on a CPU choose smaller sizes and train with ``--fast``.
Intervals are over texts, not over training runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from corpus import encoded, may_train

import orderlens as ol
from orderlens.common.rng import keyed_generator
from orderlens.errors import OrderLensError
from orderlens.models.evaluators.small import causal_log_probs
from orderlens.models.files.tokenizer import TOKENIZER, FastTokenizer
from orderlens.models.small.folder import bundled_folder, read_folder, save_folder
from orderlens.models.small.network import TransformerConfig
from orderlens.training.data import EOS_ID, WindowMixture, pack, read_documents, write_shard
from orderlens.training.loop import LoopSettings, Trainer
from orderlens.training.optimiser import LearningRateSchedule, OptimiserSettings
from orderlens.training.steps import CHECKPOINT

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ORDERS = ("forced-ar", "reverse-ar", "random:0", "random:1", "max-prob", "top-margin")
HELDOUT_EVERY = 400
PADDED_SHARE = 0.07
PLAN, SCORES = "plan.json", "scores.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that all models share; written once by ``prepare``.

    Attributes:
        noise_texts: number of texts that are scored again, one at a time, for the noise floor.
        span: positions of the span of which all orders are compared.
        census_texts: number of texts with such a span.
    """

    prefix: int = 32
    target: int = 128
    block: int = 32
    layers: int = 8
    width: int = 384
    heads: int = 6
    steps: int = 600
    batch: int = 256
    texts: int = 128
    noise_texts: int = 16
    span: int = 8
    census_texts: int = 60
    seed: int = 0

    @property
    def window(self) -> int:
        """Tokens of a training window: the length of a scored text, so that canvases match training."""
        return self.prefix + self.target

    def config(self, attention: Any, vocab_size: int) -> TransformerConfig:
        """Return the network's shape."""
        return TransformerConfig(
            vocab_size=vocab_size, n_layers=self.layers, width=self.width, n_heads=self.heads,
            ffn_width=-(-8 * self.width // 3 // 32) * 32, block_size=self.block, attention=attention,
            max_positions=4 * self.window,
        )  # fmt: skip


DEFAULT = Plan()
MODELS = {
    "block-causal": ("block-causal", 0),
    "block-causal-again": ("block-causal", 1),
    "full": ("full", 0),
    "permutation": ("permutation", 0),
    "causal": ("causal", 0),
}
"""Name → attention, and the number added to the plan's seed for weights and masks (batches do not change)."""

Work = Annotated[Path, typer.Option(help="Folder for windows, models, runs and the page.")]
Device = Annotated[str, typer.Option(help="cuda or cpu.")]
TextFile = Annotated[Path, typer.Option(help="Held-out documents to score (C4's validation split).")]


def read_plan(work: Path) -> Plan:
    if not (work / PLAN).exists():
        raise SystemExit(f"{work} does not contain {PLAN}; run 'prepare' first")
    return Plan(**json.loads((work / PLAN).read_text()))


# ---- prepare and train -----------------------------------------------------------------------------------


def prepare(corpus: Path, work: Path, plan: Plan) -> None:
    """Tokenise the corpus parts and cut them into windows; skip documents that overlap held-out texts."""
    bpe = FastTokenizer.from_file(bundled_folder("tiny") / TOKENIZER)
    for part in sorted(corpus.glob("*.jsonl*")):
        name = part.name.split(".")[0]
        if (work / "windows" / "text" / f"{name}.npy").exists():
            continue
        documents = list(encoded(bpe, filter(may_train, read_documents(part))))
        rng = keyed_generator(plan.seed, "pack", name)
        heldout = pack(documents[HELDOUT_EVERY - 1 :: HELDOUT_EVERY], plan.window, EOS_ID, PADDED_SHARE, rng)
        trained = (ids for index, ids in enumerate(documents, 1) if index % HELDOUT_EVERY)
        windows = pack(trained, plan.window, EOS_ID, PADDED_SHARE, rng)
        write_shard(work, "heldout", name, heldout)
        write_shard(work / "windows", "text", name, windows)
        print(f"{name}: {len(documents)} documents, {windows.size / 1e6:.1f} M tokens", flush=True)
    (work / PLAN).write_text(json.dumps(asdict(plan)))


def train(work: Path, name: str, device: str, fast: bool = False) -> None:
    """Train one model and write its folder; resume from a checkpoint if there is one.

    ``fast`` compiles the passes and runs them in bfloat16 on a CPU, too.
    """
    plan, (attention, extra), out = read_plan(work), MODELS[name], work / "models" / name
    if (out / "config.json").exists():
        return
    bpe = FastTokenizer.from_file(bundled_folder("tiny") / TOKENIZER)
    out.mkdir(parents=True, exist_ok=True)
    settings = LoopSettings(
        window=plan.window, seed=plan.seed + extra, device=device, log_every=20, validate_every=200,
        compiled=fast, bfloat16=fast or None,
    )  # fmt: skip
    mixture = WindowMixture(work / "windows", {"text": 1.0}, plan.batch, plan.seed)
    heldout = np.concatenate([np.load(path) for path in sorted((work / "heldout").glob("*.npy"))])
    schedule = LearningRateSchedule(steps=plan.steps, warmup_steps=max(1, min(100, plan.steps // 10)))
    config = plan.config(attention, bpe.vocab_size)
    trainer = Trainer(config, settings, schedule, OptimiserSettings(), mixture, heldout, out)
    if (out / CHECKPOINT).exists():
        trainer.resume()
    trainer.run(lambda line: print(name, json.dumps(line), flush=True))
    notes = {
        "steps": trainer.step,
        "seconds": round(trainer.elapsed_s, 1),
        "tokens": trainer.step * plan.batch * plan.window,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "heldout_loss": trainer.heldout_loss(),
    }
    save_folder(out, trainer.model.cpu(), bpe, int8=False, notes=notes)
    (out / CHECKPOINT).unlink()  # three times the model's size, and no longer needed
    print(name, json.dumps(notes), flush=True)


# ---- score -----------------------------------------------------------------------------------------------


def score(work: Path, name: str, texts: Path, device: str) -> None:
    """Score the held-out texts under all orders, in blocks and in one block, or left to right."""
    plan, folder = read_plan(work), work / "models" / name
    samples = read_samples(folder, plan, texts)
    if MODELS[name][0] == "causal":
        score_left_to_right(folder, samples, device)
        return
    model = ol.load_model(folder, device=device)
    blocks = {name: plan.block}
    if model.attention != "block-causal" and plan.target > plan.block:
        blocks[f"{name}, one block"] = plan.target
    for label, block in blocks.items():
        folder_name = label.replace(", ", "-").replace(" ", "-")
        how = {"block_size": block, "anchor": "prompt"}
        for kind, part in (("runs", samples), ("noise", samples[: plan.noise_texts])):
            out = work / kind / folder_name
            if not out.exists():
                ol.score(model, part, ORDERS, noise_floor=kind == "noise", out=out, **how)
        print(f"{label}: scored", flush=True)


def read_samples(folder: Path, plan: Plan, texts: Path) -> Any:
    """Return the held-out texts, split into prompt and target."""
    tokenizer = FastTokenizer.from_file(folder / TOKENIZER)
    lengths = {"prefix_tokens": plan.prefix, "target_tokens": plan.target}
    return ol.load_samples(texts, tokenizer, limit=plan.texts, **lengths)


def census(work: Path, name: str, texts: Path, device: str) -> None:
    """Evaluate all orders of the first positions of each text; a causal model has one order only."""
    plan, folder, out = read_plan(work), work / "models" / name, work / "census" / name
    if MODELS[name][0] == "causal" or out.exists():
        return
    samples = read_samples(folder, plan, texts)[: plan.census_texts]
    model = ol.load_model(folder, device=device)
    how = {"block_size": plan.block, "anchor": "prompt"}
    ol.census(model, samples, span=plan.span, orders=(*ORDERS, "oracle-max-q"), out=out, **how)
    print(f"{name}: all orders of {plan.span} positions", flush=True)


def score_left_to_right(folder: Path, samples: Any, device: str) -> None:
    """Write mean and Var of log q along every text for the autoregressive twin."""
    network = read_folder(folder).network.to(device)
    ids_BT = torch.tensor([[*sample.prompt, *sample.target] for sample in samples], device=device)
    inputs_BT = torch.nn.functional.pad(ids_BT[:, :-1], (1, 0), value=EOS_ID)
    first = len(samples[0].prompt)
    with torch.no_grad():
        parts = [
            causal_log_probs(network, *pair)[:, first:]
            for pair in zip(inputs_BT.split(32), ids_BT.split(32), strict=True)
        ]
    logq = torch.cat(parts).double().cpu().numpy()
    rows = [
        {"sample_id": sample.id, "order": "forced-ar", "mean": row.mean(), "var": row.var()}
        for sample, row in zip(samples, logq, strict=True)
    ]
    (folder / SCORES).write_text(json.dumps(rows))
    print(f"{folder.name}: scored", flush=True)


# ---- the command line ------------------------------------------------------------------------------------


@app.command("prepare")
def prepare_command(
    corpus: Annotated[Path, typer.Option(help="Folder with *.jsonl[.gz|.xz] parts.")],
    work: Work,
    steps: Annotated[int, typer.Option(help="Training steps of every model.")] = DEFAULT.steps,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = DEFAULT.batch,
    texts: Annotated[int, typer.Option(help="Texts to score.")] = DEFAULT.texts,
    layers: Annotated[int, typer.Option()] = DEFAULT.layers,
    width: Annotated[int, typer.Option()] = DEFAULT.width,
    heads: Annotated[int, typer.Option()] = DEFAULT.heads,
    prefix: Annotated[int, typer.Option(help="Tokens of a prompt.")] = DEFAULT.prefix,
    target: Annotated[int, typer.Option(help="Tokens to score.")] = DEFAULT.target,
    block: Annotated[int, typer.Option()] = DEFAULT.block,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Tokenise the corpus and write the settings that all models share."""
    shape = {"prefix": prefix, "target": target, "block": block}
    shape |= {"layers": layers, "width": width, "heads": heads}
    prepare(corpus, work, Plan(**shape, steps=steps, batch=batch, texts=texts, seed=seed))


@app.command("train")
def train_command(
    work: Work, device: Device = "cuda", only: str = "",
    fast: Annotated[bool, typer.Option(help="Compile; compute in bfloat16 on a CPU too.")] = False,
) -> None:  # fmt: skip
    """Train all models that are not trained yet, or the one named with --only."""
    for name in [only] if only else MODELS:
        train(work, name, device, fast)


@app.command("score")
def score_command(work: Work, texts: TextFile, device: Device = "cuda", only: str = "") -> None:
    """Score the texts under all trained models."""
    for name in [only] if only else MODELS:
        score(work, name, texts, device)


@app.command("census")
def census_command(work: Work, texts: TextFile, device: Device = "cuda", only: str = "") -> None:
    """Compare all orders of one span per text under all trained models."""
    for name in [only] if only else MODELS:
        census(work, name, texts, device)


@app.command("compare")
def compare_command(
    work: Work, out: Annotated[Path | None, typer.Option(help="Write the page here as well.")] = None
) -> None:
    """Print the tables; all intervals are over texts."""
    from architectures_page import write_page

    page = write_page(work)
    if out is not None:
        out.write_text(page)
    print(page)


@app.command("all")
def everything(
    corpus: Annotated[Path, typer.Option(help="Folder with *.jsonl[.gz|.xz] parts.")],
    texts: TextFile,
    work: Work,
    device: Device = "cuda",
    steps: Annotated[int, typer.Option(help="Training steps of every model.")] = DEFAULT.steps,
) -> None:
    """Run all stages, model by model, so that first results can be read early."""
    prepare(corpus, work, replace(DEFAULT, steps=steps))
    for name in MODELS:
        train(work, name, device)
        score(work, name, texts, device)
        census(work, name, texts, device)
    compare_command(work, work / "page.md")


if __name__ == "__main__":
    try:
        app()
    except OrderLensError as error:
        raise SystemExit(str(error)) from None
