"""Compare bundled models and counting baselines on the same held-out bytes.

    PYTHONPATH=src python recipes/evaluate_bundled.py --c4 validation.jsonl.gz --work WORK \
        --model src/orderlens/models/data/tiny --model src/orderlens/models/data/tiny-ar

Texts of at least 32 + 128 tokens; bits per byte of the 128 after the prompt. Order-agnostic models are scored
under forced, reverse and several random orders. The counting baselines are trained on the natural-text
windows that `train_bundled.py prepare` wrote to WORK, and also see the 32 tokens of the prompt.

With `--run RUN` (of `orderlens score --model tiny`) the texts and orders are that run's, and `against_forced`
gives each order's mean paired difference from forced-ar with its standard error.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from corpus import document_windows, target_bytes
from ngram import KneserNey
from train_bundled import SHARES, tokenizer

from orderlens.models.small.folder import read_folder
from orderlens.store.reader import Run, open_run
from orderlens.training.validate import mean_log_prob

PREFIX, TARGET = 32, 128


def row(name: str, values: np.ndarray, target_bytes: float) -> dict[str, Any]:
    nats = float(values.mean())
    return {
        "model": name,
        "nats_per_token": round(nats, 4),
        "standard_error": round(float(values.std(ddof=1)) / math.sqrt(len(values)), 4),
        "bits_per_byte": round(-nats * TARGET / math.log(2) / target_bytes, 4),
        "texts": len(values),
    }


def model_rows(
    folder: Path, windows: torch.Tensor, target_bytes: float, seeds: int, device: str
) -> list[dict[str, Any]]:
    network = read_folder(folder).network.to(device)
    orders = [("forced-ar", 0)]
    if network.config.attention != "causal":
        orders += [("reverse-ar", 0), *(("random", seed) for seed in range(seeds))]
    found = []
    for order, seed in orders:
        values = mean_log_prob(network, windows.to(device), PREFIX, order, seed, batch=64).cpu().numpy()
        label = f"{folder.name} {order}" + (f":{seed}" if order == "random" else "")
        found.append(row(label, values, target_bytes))
    return found


def run_windows(run: Run) -> tuple[torch.Tensor, float, list[str]]:
    """Return the windows that a run scored, the mean number of bytes of a target, and the sample ids."""
    rows = {row["sample_id"]: row for row in run.outputs().to_arrow().to_pylist()}
    tokens = [[*row["prompt_ids"], *row["token_ids"]] for row in rows.values()]
    return torch.tensor(tokens), target_bytes(tokenizer(), tokens, PREFIX), list(rows)


def run_rows(run: Run, ids: list[str], target_bytes: float) -> list[dict[str, Any]]:
    frame = run.samples().to_pandas().pivot_table(index="sample_id", columns="order", values="mean")
    values = {str(order): frame[order].loc[ids].to_numpy() for order in frame.columns}
    found = []
    for order in sorted(values, key=lambda name: -values[name].mean()):
        line = row(f"{run.spec['model']['name']} {order}", values[order], target_bytes)
        gap = values[order] - values["forced-ar"]
        error = float(gap.std(ddof=1)) / math.sqrt(len(gap))
        found.append(line | {"against_forced": [round(float(gap.mean()), 4), round(error, 4)]})
    return found


def natural_tokens(work: Path, most: int) -> np.ndarray:
    files = [
        path for source in SHARES if source not in ("arith", "choice")
        for path in sorted((work / "windows" / source).glob("*.npy"))
    ]  # fmt: skip
    return np.concatenate([np.load(path).ravel() for path in files])[:most]


def baseline_rows(work: Path, windows: torch.Tensor, target_bytes: float, most: int) -> list[dict[str, Any]]:
    tokens = natural_tokens(work, most)
    found = []
    for name, length in (("unigram", 1), ("5-gram", 5)):
        counted = KneserNey(tokens, length, 8192)
        values = np.array([counted.log_probs(text)[PREFIX:].mean() for text in windows.numpy()])
        found.append(row(f"{name}, {len(tokens) / 1e6:.0f} M tokens", values, target_bytes))
    return found


def main(
    model: Annotated[list[Path], typer.Option(help="Model folder; repeatable.")],
    c4: Annotated[Path | None, typer.Option(help="Held-out documents.")] = None,
    run: Annotated[Path | None, typer.Option(help="Score run whose texts and orders to use.")] = None,
    work: Annotated[Path | None, typer.Option(help="Folder of `prepare`, for the baselines.")] = None,
    limit: Annotated[int, typer.Option(help="Documents to use.")] = 900,
    seeds: Annotated[int, typer.Option(help="Random orders.")] = 4,
    most: Annotated[int, typer.Option(help="Tokens for the baselines.")] = 150_000_000,
    device: Annotated[str, typer.Option()] = "cpu",
) -> None:
    """Print one JSON row per model and order."""
    lines: list[dict[str, Any]] = []
    if run is not None:
        windows, target_bytes, ids = run_windows(open_run(run))
        lines = run_rows(open_run(run), ids, target_bytes)
    elif c4 is not None:
        windows, target_bytes = document_windows(tokenizer(), c4, PREFIX, TARGET, limit)
    else:
        raise SystemExit("give --c4 or --run")
    for line in lines:
        print(json.dumps(line))
    for folder in model:
        for line in model_rows(folder, windows, target_bytes, seeds, device):
            print(json.dumps(line), flush=True)
    if work is not None:
        for line in baseline_rows(work, windows, target_bytes, most):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    typer.run(main)
