"""Train the bundled models on one GPU: `tiny`, `tiny-ar`, and the same-size autoregressive twin.

Each stage is a subcommand; every stage may run in the background and can be restarted after a stop:

    prepare   corpus parts (text-*.jsonl.xz) and the task generators -> windows of token ids
    train     --which tiny|tiny-ar|twin --max-minutes X      (resumes automatically from its checkpoint)
    export    latest checkpoint -> config, int8 weights, tokenizer, validation losses; checks sizes
    smoke     a few steps of every stage, export included

Runs from the source tree with only torch, numpy, tokenizers, safetensors, rich and typer installed:

    PYTHONPATH=src python recipes/train_bundled.py prepare --corpus FOLDER --work WORK
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from bundled_tasks import training_documents
from corpus import document_windows, encoded, interleave, may_train

from orderlens.common.rng import keyed_generator
from orderlens.errors import OrderLensError
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.small.folder import bundled_folder, read_folder, save_folder
from orderlens.models.small.network import Transformer, TransformerConfig
from orderlens.training.data import EOS_ID, WindowMixture, pack, text_rows, write_shard
from orderlens.training.loop import LoopSettings, Trainer
from orderlens.training.optimiser import LearningRateSchedule, OptimiserSettings
from orderlens.training.steps import CHECKPOINT, METRICS, load_checkpoint
from orderlens.training.validate import ORDERS, any_order_bound, mean_log_prob

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SEED = 20261115
WINDOW = 512
PADDED_SHARE = 0.07
HELDOUT_EVERY = 400
SHARES = {
    "wikipedia-en": 0.57, "wikinews-en": 0.09, "gutenberg": 0.05, "c4-en": 0.04,
    "arith": 0.125, "choice": 0.125,
}  # fmt: skip
TASK_SHARDS, TASK_DOCUMENTS = 8, 60_000
CONFIGS = {
    "tiny": TransformerConfig(),
    "tiny-ar": TransformerConfig(n_layers=7, width=320, n_heads=5, ffn_width=896, attention="causal"),
    "twin": TransformerConfig(attention="causal"),
    "toy": TransformerConfig(n_layers=2, width=64, n_heads=2, ffn_width=128),
    "toy-ar": TransformerConfig(n_layers=2, width=64, n_heads=2, ffn_width=128, attention="causal"),
}
MAX_BYTES = {"tiny": 27_000_000, "tiny-ar": 13_000_000}
PIECE_BYTES = 15_000_000

Work = Annotated[Path, typer.Option(help="Folder for windows, checkpoints and exports.")]
Which = Annotated[str, typer.Option(help=f"One of {', '.join(CONFIGS)}.")]


# ---- prepare ---------------------------------------------------------------------------------------------


def tokenizer() -> FastTokenizer:
    return FastTokenizer.from_file(bundled_folder("tiny") / "tokenizer.json")


def pack_source(work: Path, source: str, shard: str, texts: Iterable[str], heldout_every: int) -> str:
    rng = keyed_generator(SEED, "pack", source, shard)
    documents = list(encoded(tokenizer(), texts))
    kept = [ids for index, ids in enumerate(documents) if (index + 1) % heldout_every]
    apart = [ids for index, ids in enumerate(documents) if not (index + 1) % heldout_every]
    windows = pack(kept, WINDOW, EOS_ID, PADDED_SHARE, rng)
    if apart:
        write_shard(work / "heldout", source, shard, pack(apart, WINDOW, EOS_ID, PADDED_SHARE, rng))
    write_shard(work / "windows", source, shard, windows)
    return f"{source}/{shard}: {len(documents)} documents, {windows.size / 1e6:.2f} M tokens"


def prepare_part(part: Path, work: Path) -> list[str]:
    rows = [(str(row["source"]), str(row["text"])) for row in text_rows(part)]
    rows = [(source, text) for source, text in rows if may_train(text)]
    sources = sorted({source for source, _ in rows})
    name = part.name.split(".")[0]
    return [
        pack_source(work, source, name, [text for which, text in rows if which == source], HELDOUT_EVERY)
        for source in sources
    ]


def prepare_task(task: str, shard: int, documents: int, work: Path) -> list[str]:
    texts = itertools.islice(training_documents(task, SEED + shard), documents)
    return [pack_source(work, task, f"{task}-{shard}", texts, HELDOUT_EVERY)]


def _pending(work: Path, source: str, shard: str) -> bool:
    return not (work / "windows" / source / f"{shard}.npy").exists()


@app.command()
def prepare(
    work: Work,
    corpus: Annotated[Path | None, typer.Option(help="Folder with text-*.jsonl.xz parts.")] = None,
    task_documents: Annotated[
        int, typer.Option(help="Documents per task shard; 0 for none.")
    ] = TASK_DOCUMENTS,
    processes: Annotated[int, typer.Option()] = os.cpu_count() or 1,
) -> None:
    """Tokenise the corpus parts that are not tokenised yet, and the task documents."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ.setdefault("RAYON_NUM_THREADS", "2")
    parts = sorted(corpus.glob("*.jsonl*")) if corpus else []
    with ProcessPoolExecutor(processes) as pool:
        jobs = [
            pool.submit(prepare_part, part, work)
            for part in parts
            if _pending(work, "wikipedia-en", part.name.split(".")[0])
        ]
        jobs += [
            pool.submit(prepare_task, task, shard, task_documents, work)
            for task in ("arith", "choice")
            for shard in range(TASK_SHARDS if task_documents else 0)
            if _pending(work, task, f"{task}-{shard}")
        ]
        for job in jobs:
            for line in job.result():
                print(line, flush=True)


# ---- train -----------------------------------------------------------------------------------------------


def heldout_windows(work: Path, sources: Iterable[str], per_source: int = 128) -> np.ndarray:
    """Return held-out windows, alternating between all sources."""
    groups = []
    for source in sources:
        files = sorted((work / "heldout" / source).glob("*.npy"))
        if files:
            windows = np.concatenate([np.load(path) for path in files])
            groups.append(
                windows[keyed_generator(SEED, "heldout", source).permutation(len(windows))[:per_source]]
            )
    return interleave(groups, WINDOW)


def build_trainer(
    which: str, work: Path, folder: Path, schedule: LearningRateSchedule, batch: int, device: str,
    optimiser: OptimiserSettings, **loop: Any,
) -> Trainer:  # fmt: skip
    cuda = device == "cuda"
    settings = LoopSettings(
        window=WINDOW, seed=SEED, device=device, compiled=cuda, attention="flex" if cuda else "dense",
        log_every=20, validate_every=200, checkpoint_seconds=120, refresh_every=50,
    )  # fmt: skip
    mixture = WindowMixture(work / "windows", SHARES, batch, SEED)
    heldout = heldout_windows(work, SHARES)
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(CONFIGS[which], replace(settings, **loop), schedule, optimiser, mixture, heldout, folder)


@app.command()
def train(
    which: Which,
    work: Work,
    max_minutes: Annotated[float, typer.Option(help="Wall time, compiling included.")] = 0.0,
    steps: Annotated[int, typer.Option(help="Steps instead of minutes.")] = 0,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = 256,
    matrix_lr: Annotated[float, typer.Option()] = OptimiserSettings().matrix_lr,
    vector_lr: Annotated[float, typer.Option()] = OptimiserSettings().vector_lr,
    hold: Annotated[float, typer.Option(help="Share of the time before the decay starts.")] = 0.2,
    device: Annotated[str, typer.Option()] = "cuda",
    attention: Annotated[str, typer.Option(help="flex or dense (slow, but without FlexAttention).")] = "",
    wait_for: Annotated[int, typer.Option(help="Wait until this many corpus parts are tokenised.")] = 1,
) -> None:
    """Train one model for a time or a number of steps; resume from a checkpoint if there is one."""
    if bool(max_minutes) == bool(steps):
        raise SystemExit("give either --max-minutes or --steps")
    if which not in CONFIGS:
        raise SystemExit(f"no model {which!r}; choose one of {', '.join(CONFIGS)}")
    if not (work / "windows").is_dir():
        raise SystemExit(f"{work} holds no windows; run 'prepare' first")
    while len(list((work / "windows" / "wikipedia-en").glob("*.npy"))) < wait_for or not all(
        list((work / "windows" / source).glob("*.npy")) for source in SHARES
    ):
        time.sleep(1)
    schedule = LearningRateSchedule(
        max_minutes=max_minutes or None, steps=steps or None, warmup_steps=100, hold=hold
    )
    optimiser = OptimiserSettings(matrix_lr=matrix_lr, vector_lr=vector_lr)
    extra = {"attention": attention} if attention else {}
    torch.set_float32_matmul_precision("high")
    trainer = build_trainer(which, work, work / "runs" / which, schedule, batch, device, optimiser, **extra)
    if (trainer.folder / CHECKPOINT).exists():
        trainer.resume()
        print(f"{which}: resumed at step {trainer.step}", flush=True)
    last = trainer.run(lambda line: print(which, json.dumps(line), flush=True))
    (trainer.folder / "done.json").write_text(json.dumps(last))
    print(f"{which}: done at step {trainer.step}, {trainer.elapsed_s:.0f} s", flush=True)


# ---- export ----------------------------------------------------------------------------------------------


def figures(model: Transformer, work: Path, c4: Path | None, device: str, limit: int) -> dict[str, Any]:
    """Return validation losses: the any-order bound per source, and log P/n per order on held-out C4."""
    result: dict[str, Any] = {}
    model = model.to(device)
    if model.config.attention != "causal":
        for source in SHARES:
            windows = heldout_windows(work, [source], min(48, limit))
            if len(windows):
                tokens = torch.from_numpy(windows.astype("int64")).to(device)
                result[f"bound/{source}"] = round(any_order_bound(model, tokens), 4)
    if c4 is not None:
        windows_BT, target_bytes = document_windows(tokenizer(), c4, 32, 128, limit)
        for order in ORDERS if model.config.attention != "causal" else ("forced-ar",):
            values = mean_log_prob(model, windows_BT.to(device), 32, order, batch=128)
            nats = float(values.mean())
            result[f"c4/{order}"] = {
                "n": len(values),
                "nats_per_token": round(nats, 4),
                "standard_error": round(float(values.std()) / math.sqrt(len(values)), 4),
                "bits_per_byte": round(-nats * 128 / math.log(2) / target_bytes, 4),
            }
    model.to("cpu")
    return result


@app.command()
def export(
    which: Which,
    work: Work,
    out: Annotated[Path, typer.Option(help="Folder for the exported files.")],
    c4: Annotated[Path | None, typer.Option(help="Held-out C4 documents (jsonl.gz).")] = None,
    device: Annotated[str, typer.Option()] = "cuda",
    limit: Annotated[int, typer.Option(help="Held-out documents to score.")] = 300,
) -> None:
    """Write the latest checkpoint as int8 safetensors, with losses before and after quantisation."""
    state = load_checkpoint(work / "runs" / which / CHECKPOINT)
    model = Transformer(TransformerConfig(**state["config"]))
    model.load_state_dict(state["model"])
    folder = out / which
    notes = {"step": state["step"], "seconds": round(state["elapsed_s"], 1), "window": WINDOW}
    save_folder(folder, model, tokenizer(), notes=notes)
    shutil.copy(work / "runs" / which / METRICS, folder / METRICS)
    size = (folder / "model.safetensors").stat().st_size
    if size > MAX_BYTES.get(which, size):
        raise SystemExit(f"{which}: {size} bytes of weights, allowed {MAX_BYTES[which]}")
    write_pieces(folder / "model.safetensors")
    quantised = read_folder(folder).network
    report = {
        "which": which, **notes, "bytes": size,
        "float32": figures(model, work, c4, device, limit),
        "int8": figures(quantised, work, c4, device, limit),
    }  # fmt: skip
    (folder / "figures.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1), flush=True)


def write_pieces(path: Path) -> None:
    """Split a file into small parts for separate downloads (PATH.0, PATH.1 and so on)."""
    data = path.read_bytes()
    for index, start in enumerate(range(0, len(data), PIECE_BYTES)):
        path.with_name(f"{path.name}.{index}").write_bytes(data[start : start + PIECE_BYTES])


# ---- smoke -----------------------------------------------------------------------------------------------


@app.command()
def smoke(
    work: Work,
    steps: Annotated[int, typer.Option()] = 20,
    batch: Annotated[int, typer.Option()] = 256,
    device: Annotated[str, typer.Option()] = "cuda",
    which: Annotated[str, typer.Option(help="Models, comma-separated.")] = "tiny,tiny-ar",
    limit: Annotated[int, typer.Option()] = 32,
    c4: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Run a few steps of every stage and print speed, memory and the size of the export."""
    torch.set_float32_matmul_precision("high")
    for name in which.split(","):
        folder = work / "smoke" / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        trainer = build_trainer(
            name, work, folder, LearningRateSchedule(steps=steps, warmup_steps=5), batch, device,
            OptimiserSettings(), log_every=1, validate_every=steps,
        )  # fmt: skip
        lines: list[dict[str, Any]] = []
        trainer.run(lines.append)
        half = lines[len(lines) // 2 :]
        rate = (half[-1]["tokens"] - half[0]["tokens"]) / max(
            1e-9, half[-1]["elapsed_s"] - half[0]["elapsed_s"]
        )
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else math.nan
        print(
            f"{name}: loss {lines[0]['loss']:.3f} -> {lines[-1]['loss']:.3f}, "
            f"held-out {lines[-1]['heldout_loss']}, "
            f"{rate / 1e3:.0f} k tokens/s, first step {lines[0]['elapsed_s']:.1f} s, peak {peak:.1f} GiB, "
            f"{time.monotonic() - began:.1f} s in all",
            flush=True,
        )
        del trainer
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        shutil.copytree(work / "heldout", work / "smoke" / "heldout", dirs_exist_ok=True)
        export(name, work / "smoke", work / "smoke" / "out", c4, device, limit)


if __name__ == "__main__":
    try:
        app()
    except OrderLensError as error:
        raise SystemExit(str(error)) from None
