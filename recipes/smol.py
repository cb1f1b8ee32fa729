"""Make the adapter of `smol` on one GPU: SmolLM2-135M-Instruct becomes a block-diffusion model.

Each stage is a subcommand; every stage may run in the background and can be restarted after a stop:

    prepare    corpus parts (text-*.jsonl.xz) -> windows of token ids, and beginnings of documents
    distil     the original model's answers to instructions and continuations of document beginnings
    train      --minutes X      (resumes automatically from its checkpoint)
    evaluate   losses of the saved adapter and of the original on held-out documents -> figures.json
    answers    the original's greedy answers to a file of prompts (the baseline for instructions)

Runs from the source tree with only torch, numpy, tokenizers, safetensors, rich and typer installed:

    PYTHONPATH=src python recipes/smol.py prepare --base BASE.gguf --corpus FOLDER --work WORK
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from adapter_training import AdapterTrainer, AdaptSettings
from corpus import document_windows, encoded, interleave, may_train
from lowrank import LowRankRates
from smol_causal import continue_rows
from smol_distil import BLOCK, SEED, STOPS, WINDOW, chat_text, distil_chat, distil_text, original, say

from orderlens.common.rng import keyed_generator
from orderlens.errors import OrderLensError
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.small.network import Transformer
from orderlens.models.smol.adapter import AdapterSettings, check_adapter, load_adapter, merge
from orderlens.models.smol.llama import GgufFile, read_network, read_shape, read_tokenizer
from orderlens.models.smol.model import END_OF_TEXT, TURN_END, read_original
from orderlens.texts.rows import read_rows
from orderlens.training.data import Tokens, WindowMixture, pack, text_rows, write_shard
from orderlens.training.optimiser import LearningRateSchedule
from orderlens.training.validate import ORDERS, mean_log_prob

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

PADDED_SHARE = 0.03
HELDOUT_EVERY = 400
BEGINNING = 16
CORPUS = ("wikipedia-en", "wikinews-en", "gutenberg", "c4-en")
SHARES = {
    "wikipedia-en": 0.30,
    "wikinews-en": 0.14,
    "gutenberg": 0.04,
    "c4-en": 0.10,
    "teacher": 0.25,
    "chat": 0.17,
}

Work = Annotated[Path, typer.Option(help="Folder for windows, checkpoints and results.")]
Base = Annotated[Path, typer.Option(help="The base file (GGUF).")]
Device = Annotated[str, typer.Option(help="cuda or cpu.")]


# ---- prepare ---------------------------------------------------------------------------------------------


def beginnings(bpe: FastTokenizer, texts: Sequence[str]) -> Tokens:
    """Return the first tokens of documents and of their long paragraphs, [n, BEGINNING]."""
    starts = [part[:300] for text in texts for part in text.split("\n") if len(part) >= 200]
    rows = [ids[:BEGINNING] for ids in encoded(bpe, starts) if len(ids) > BEGINNING]
    return np.array(rows, np.uint16).reshape(-1, BEGINNING)


def prepare_part(part: Path, base: Path, work: Path) -> list[str]:
    bpe = read_tokenizer(GgufFile(base).metadata)
    rows = [(str(row["source"]), str(row["text"])) for row in text_rows(part)]
    name, report = part.name.split(".")[0], []
    for source in CORPUS:
        texts = [text for which, text in rows if which == source and may_train(text)]
        if not texts:
            continue
        rng = keyed_generator(SEED, "pack", source, name)
        write_shard(work / "beginnings", source, name, beginnings(bpe, texts[:1000]))
        documents = list(encoded(bpe, texts))
        heldout = documents[HELDOUT_EVERY - 1 :: HELDOUT_EVERY]
        trained = [ids for index, ids in enumerate(documents) if (index + 1) % HELDOUT_EVERY]
        if heldout:
            write_shard(work / "heldout", source, name, pack(heldout, WINDOW, END_OF_TEXT, PADDED_SHARE, rng))
        windows = pack(trained, WINDOW, END_OF_TEXT, PADDED_SHARE, rng)
        write_shard(work / "windows", source, name, windows[rng.permutation(len(windows))])
        report.append(f"{source}/{name}: {len(documents)} documents, {windows.size / 1e6:.2f} M tokens")
    return report


@app.command()
def prepare(
    base: Base,
    corpus: Annotated[Path, typer.Option(help="Folder with text-*.jsonl.xz parts.")],
    work: Work,
    processes: Annotated[int, typer.Option()] = min(4, os.cpu_count() or 1),
) -> None:
    """Tokenise the corpus parts that are not tokenised yet."""
    os.environ.setdefault("RAYON_NUM_THREADS", "3")
    parts = [
        part
        for part in sorted(corpus.glob("*.jsonl*"))
        if not (work / "windows" / CORPUS[0] / f"{part.name.split('.')[0]}.npy").exists()
    ]
    with ProcessPoolExecutor(processes) as pool:
        for report in pool.map(prepare_part, parts, itertools.repeat(base), itertools.repeat(work)):
            for line in report:
                say(line)


# ---- distil ----------------------------------------------------------------------------------------------


@app.command()
def distil(
    base: Base,
    work: Work,
    chat_seconds: Annotated[float, typer.Option(help="Wall time for answers to instructions.")] = 75,
    text_seconds: Annotated[float, typer.Option(help="Wall time for continuations.")] = 60,
    batch: Annotated[int, typer.Option(help="Rows per batch.")] = 2048,
    new: Annotated[int, typer.Option(help="Maximum number of new tokens per row.")] = 256,
    wait_for: Annotated[str, typer.Option(help="Wait for this source's beginnings.")] = "wikipedia-en",
    device: Device = "cuda",
) -> None:
    """Generate texts with the original model: answers in the chat format, and continuations."""
    network, bpe = original(base, device)
    say("distil: original loaded")
    distil_chat(network, bpe, work, chat_seconds, batch, new, time.monotonic())
    while not list((work / "beginnings" / wait_for).glob("*.npy")):
        time.sleep(1)
    distil_text(network, bpe, work, text_seconds, batch, new, time.monotonic())


# ---- train -----------------------------------------------------------------------------------------------


def heldout_windows(work: Path, per_source: int = 32) -> Tokens:
    """Return held-out windows, alternating between all sources."""
    groups = []
    for source in CORPUS:
        files = sorted((work / "heldout" / source).glob("*.npy"))
        if files:
            groups.append(np.concatenate([np.load(path) for path in files])[:per_source])
    return interleave(groups, WINDOW)


def present_shares(work: Path, wait_seconds: float) -> dict[str, float]:
    """Wait for windows; return the shares of the sources that have some, and print the others."""
    deadline = time.monotonic() + wait_seconds
    while True:
        found = {
            name: share for name, share in SHARES.items() if list((work / "windows" / name).glob("*.npy"))
        }
        if len(found) == len(SHARES) or (found and time.monotonic() > deadline):
            break
        time.sleep(1)
    if len(found) < len(SHARES):
        say(f"skipped sources without windows: {', '.join(sorted(SHARES.keys() - found.keys()))}")
    return found


def blockwise(base: Path, adapter: AdapterSettings) -> Transformer:
    file = GgufFile(base)
    ids = {"block_size": adapter.block_size, "mask_id": adapter.mask_id, "eos_id": TURN_END}
    return read_network(file, read_shape(file.metadata, "block-causal", **ids))


@app.command()
def train(
    base: Base,
    work: Work,
    minutes: Annotated[float, typer.Option(help="Wall time in minutes, including compilation.")] = 0.0,
    steps: Annotated[int, typer.Option(help="Steps instead of minutes.")] = 0,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = 64,
    rank: Annotated[int, typer.Option()] = AdapterSettings().rank,
    scale: Annotated[float, typer.Option()] = AdapterSettings().scale,
    lr: Annotated[float, typer.Option(help="Peak learning rate of the factors.")] = LowRankRates().factors,
    norm_lr: Annotated[float, typer.Option()] = LowRankRates().norms,
    cut_share: Annotated[float, typer.Option(help="Share of blocks cut in two.")] = 0.3,
    hold: Annotated[float, typer.Option(help="Share of the time before the decay starts.")] = 0.1,
    log_every: Annotated[int, typer.Option()] = 20,
    wait_seconds: Annotated[float, typer.Option(help="Seconds to wait for sources without windows.")] = 60,
    device: Device = "cuda",
) -> None:
    """Train the adapter for a time or a number of steps; resume from a checkpoint if there is one."""
    if bool(minutes) == bool(steps):
        raise SystemExit("give either --minutes or --steps")
    torch.set_float32_matmul_precision("high")
    adapter = AdapterSettings(rank=rank, scale=scale, block_size=BLOCK)
    network = blockwise(base, adapter)
    shares = present_shares(work, wait_seconds)
    trainer = AdapterTrainer(
        network,
        adapter,
        LowRankRates(factors=lr, norms=norm_lr),
        AdaptSettings(window=WINDOW, seed=SEED, device=device, cut_share=cut_share, log_every=log_every,
                      validate_every=10 * log_every, refresh_every=50),
        LearningRateSchedule(max_minutes=minutes or None, steps=steps or None, hold=hold,
                 warmup_steps=steps // 10 if steps else 100),
        WindowMixture(work / "windows", shares, batch, SEED),
        heldout_windows(work),
        work / "run",
        work / "out",
    )  # fmt: skip
    last = trainer.run(lambda line: say(json.dumps(line)))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else math.nan
    say(f"trained: {trainer.way}, step {trainer.step}, {trainer.elapsed_s:.0f} s, peak {peak:.1f} GiB")
    (work / "run" / "done.json").write_text(json.dumps(last))


# ---- evaluate --------------------------------------------------------------------------------------------


def order_figures(
    network: Transformer, windows: torch.Tensor, target_bytes: float, batch: int
) -> dict[str, Any]:
    """Return nats per token and bits per byte after a prompt of one block, by order."""
    result = {}
    for order in ORDERS if network.config.attention != "causal" else ("forced-ar",):
        values = mean_log_prob(network, windows, BLOCK, order, batch=batch)
        nats, length = float(values.mean()), windows.shape[1] - BLOCK
        result[order] = {
            "n": len(values),
            "nats_per_token": round(nats, 4),
            "standard_error": round(float(values.std()) / math.sqrt(len(values)), 4),
            "bits_per_byte": round(-nats * length / math.log(2) / target_bytes, 4),
        }
        say(f"{network.config.attention} {order} {result[order]}")
    return result


@app.command()
def evaluate(
    base: Base,
    work: Work,
    documents: Annotated[Path, typer.Option(help="Held-out documents (jsonl.gz with 'text').")],
    limit: Annotated[int, typer.Option(help="Documents to score.")] = 300,
    batch: Annotated[int, typer.Option()] = 64,
    device: Device = "cuda",
) -> None:
    """Write figures.json: the saved adapter and the original on held-out documents."""
    torch.set_float32_matmul_precision("high")
    adapter = load_adapter(work / "out")
    network = blockwise(base, adapter.settings)
    check_adapter(adapter, network, work / "out")
    merge(network, adapter.state, adapter.settings)
    bpe = read_tokenizer(GgufFile(base).metadata)
    windows, target_bytes = document_windows(bpe, documents, BLOCK, 128, limit)
    windows = windows.to(device)
    target = work / "out" / "figures.json"
    report: dict[str, Any] = {"documents": len(windows), "target_bytes": round(target_bytes, 2)}
    report["smol"] = order_figures(network.to(device), windows, target_bytes, batch)
    target.write_text(json.dumps(report, indent=1) + "\n")
    published = read_original(base, adapter.settings.mask_id, "").network.to(device)
    report["original"] = order_figures(published, windows, target_bytes, batch)
    target.write_text(json.dumps(report, indent=1) + "\n")
    say(json.dumps(report))


@app.command()
def answers(
    base: Base,
    prompts: Annotated[Path, typer.Option(help="JSONL with a field 'prompt' (and any others, kept).")],
    out: Annotated[Path, typer.Option(help="JSONL to write, each row with 'response'.")],
    new: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 512,
    batch: Annotated[int, typer.Option()] = 256,
    device: Device = "cuda",
) -> None:
    """Write the original's greedy answers in the chat format."""
    network, bpe = original(base, device)
    rows = [row for _, row in read_rows(prompts)]
    ids = bpe.encode_many([chat_text(str(row["prompt"])) for row in rows])
    order = sorted(range(len(rows)), key=lambda place: len(ids[place]))
    for low in range(0, len(order), batch):
        some = order[low : low + batch]
        for place, found in zip(
            some, continue_rows(network, [ids[i] for i in some], new, STOPS), strict=True
        ):
            rows[place]["ended"] = bool(found) and found[-1] in STOPS
            rows[place]["response"] = bpe.decode([item for item in found if item not in STOPS])
        say(f"answers: {low + len(some)} of {len(rows)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    try:
        app()
    except OrderLensError as error:
        raise SystemExit(str(error)) from None
