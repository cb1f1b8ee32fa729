"""Time and peak memory of analysing a large graded run: every table that it can fill.

    python benchmarks/bench_analysis.py --rows 20000000

Writes a synthetic run through the real writer (four orders, four tasks, traces of 64 to 576 tokens in blocks
of 32, EOS tails, texts, verdicts that depend on the mean), then builds the tables in a separate process and
prints its wall time, CPU time and peak memory. Goal: 20 M rows in under 60 s on 2 cores with under 2 GB.
``--compact`` merges the parts first and prints its cost too. The downstream study has 150 M rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.common.rng import keyed_generator
from orderlens.runs.loop import execute
from orderlens.store.writer import open_writer

BLOCK, VOCABULARY, ITEMS_PER_UNIT, EOS, PROMPT = 32, 157_184, 160, 0, 64
ORDERS = {"forced-ar": 1.0, "max-prob": 0.8, "top-margin": 0.9, "random": 2.5}
TASKS = ("hellaswag", "cmath", "mmlu-pro", "ifeval")
PROSE = "".join(keyed_generator(0, "prose").choice(list("etaoin shrdlu cmfwyp vbgkjq xz "), 1 << 20))


def unit_tables(unit: int) -> dict[str, pa.Table]:
    """Return reveals, outputs and verdicts of one unit: ITEMS_PER_UNIT items under four orders."""
    rng = keyed_generator(0, "bench", unit)
    task = TASKS[unit % len(TASKS)]
    parts, outputs, verdicts = [], [], []
    prompts = rng.integers(0, len(PROSE) - 2_000, ITEMS_PER_UNIT)
    for order, scale in ORDERS.items():
        lengths = BLOCK * rng.integers(2, 19, ITEMS_PER_UNIT)
        reveals, mean = traces(rng, order, scale, lengths)
        ids = np.array([f"{task}-{unit:05d}-{item:03d}" for item in range(ITEMS_PER_UNIT)])
        seed = pa.scalar(0 if order == "random" else None, pa.int64())
        keys = {"task": task, "order": order, "temperature": 0.0}
        rows = len(reveals["position"])
        same = {name: pa.repeat(pa.scalar(value), rows) for name, value in keys.items()}
        same["seed"] = pa.repeat(seed, rows)
        parts.append(pa.table({"sample_id": np.repeat(ids, lengths), **same, **reveals}))
        correct = rng.random(ITEMS_PER_UNIT) < 1 / (1 + np.exp(-1.0 - 2.0 * mean))
        same = {name: pa.repeat(pa.scalar(value), ITEMS_PER_UNIT) for name, value in keys.items()}
        same |= {"seed": pa.repeat(seed, ITEMS_PER_UNIT), "correct": pa.array(correct)}
        grader = pa.repeat(pa.scalar("bench"), ITEMS_PER_UNIT)
        verdicts.append(pa.table({"sample_id": ids, **same, "grader": grader}))
        del same["correct"]
        outputs.append(pa.table({"sample_id": ids, **same, **texts(rng, prompts, lengths, reveals)}))
    found = {"reveals": parts, "outputs": outputs, "verdicts": verdicts}
    return {name: pa.concat_tables(tables) for name, tables in found.items()}


def texts(
    rng: np.random.Generator, prompts: np.ndarray, lengths: np.ndarray, reveals: dict[str, Any]
) -> dict[str, object]:
    """Return the columns of ``outputs``: tokens in text order and prose of about four bytes per token."""
    starts = np.append(0, np.cumsum(lengths))
    tokens = np.empty(starts[-1], np.int32)
    tokens[np.repeat(starts[:-1], lengths) + reveals["position"] - PROMPT] = reveals["token_id"]
    prompt_ids = rng.integers(1, VOCABULARY, (len(lengths), PROMPT)).astype(np.int32)
    at = rng.integers(0, len(PROSE) - 4 * int(lengths.max()), len(lengths))
    return {
        "prompt_ids": pa.ListArray.from_arrays(PROMPT * np.arange(len(lengths) + 1), prompt_ids.reshape(-1)),
        "token_ids": pa.ListArray.from_arrays(starts, tokens),
        "n_requested": lengths.astype(np.int32),
        "text": [PROSE[a : a + 4 * n] for a, n in zip(at, lengths, strict=True)],
        "finish_reason": ["length"] * len(lengths),
        "prompt_text": [PROSE[a : a + 4 * PROMPT] for a in prompts],
    }


def traces(
    rng: np.random.Generator, order: str, scale: float, lengths: np.ndarray
) -> tuple[dict[str, object], np.ndarray]:
    """Return the columns of one order's traces and the mean log q of each."""
    rows = int(lengths.sum())
    step = np.arange(rows) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    inside = np.tile(np.arange(BLOCK), (rows // BLOCK, 1))
    if order != "forced-ar":
        inside = rng.permuted(inside, axis=1)
    position = step // BLOCK * BLOCK + inside.reshape(-1)
    level = np.repeat(rng.gamma(3.0, 0.1 * scale, len(lengths)), lengths)
    logq = np.minimum(-rng.gamma(0.4, 1.0, rows) * level, -1e-7).astype(np.float32)
    token = np.minimum(np.exp(rng.normal(7.0, 2.2, rows)), VOCABULARY - 1).astype(np.int32) + 1
    token[position >= np.repeat(lengths - rng.integers(0, 20, len(lengths)), lengths)] = EOS
    columns: dict[str, object] = {
        "block": (step // BLOCK).astype(np.int32),
        "step": step.astype(np.int32),
        "position": (position + PROMPT).astype(np.int32),
        "token_id": token,
        "logq": logq,
        "max_logprob": logq,
        "second_logprob": logq - rng.gamma(2.0, 1.0, rows).astype(np.float32),
        "entropy": (-logq * rng.uniform(1, 2, rows)).astype(np.float32),
        "is_eos": token == EOS,
        "is_special": np.zeros(rows, np.bool_),
        "is_overflow": np.zeros(rows, np.bool_),
        "is_argmax": np.ones(rows, np.bool_),
        "n_tied": np.ones(rows, np.int32),
        "n_committed": np.ones(rows, np.int32),
    }
    return columns, np.add.reduceat(logq, np.cumsum(lengths) - lengths) / lengths


def write_run(folder: Path, rows: int) -> None:
    per_unit = ITEMS_PER_UNIT * len(ORDERS) * BLOCK * 10
    units = {f"{unit:05d}": unit for unit in range(max(1, rows // per_unit))}
    execute(open_writer(folder, {"bench": "analysis", "rows": rows}), units, unit_tables)


def analyse(folder: str) -> dict[str, object]:
    """Build all tables; return the cost and the slowest tables."""
    from orderlens.analysis.study import Study
    from orderlens.store.reader import open_run

    study, took = Study(open_run(folder)), {}
    recipes = study.suited()
    with study.needing(sorted({part for recipe in recipes.values() for part in recipe.needs})):
        n_traces = len(study.samples)
        took["statistics of all traces"] = time.process_time()
        for name, recipe in recipes.items():
            start = time.process_time()
            study.build(recipe)
            took[name] = time.process_time() - start
    most = sorted(took, key=lambda name: -took[name])[:4]
    return {
        "tables": len(recipes),
        "traces": n_traces,
        "most_cpu_s": {name: round(took[name], 1) for name in most},
    }


def compact(folder: str) -> dict[str, object]:
    """Merge the parts; return their number."""
    from orderlens.store.compact import compact_run
    from orderlens.store.folder import open_folder

    done = compact_run(open_folder(folder))
    return {"parts": [done.parts_before, done.parts_after], "bytes": [done.bytes_before, done.bytes_after]}


def measured(what: str, folder: str) -> None:
    """Run a task in this (separate) process and print its cost."""
    start = time.perf_counter()
    found = {"analyse": analyse, "compact": compact}[what](folder)
    took = {
        "wall_s": round(time.perf_counter() - start, 1),
        "cpu_s": round(time.process_time(), 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps({"what": what, **took, **found}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--keep", type=Path, help="folder for the run; an existing run is reused")
    parser.add_argument("--compact", action="store_true", help="merge the parts first")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measured(*options.measure)
        return
    folder = options.keep or Path(tempfile.mkdtemp()) / "run"
    try:
        if not folder.exists():
            write_run(folder, options.rows)
        for what in ("compact", "analyse") if options.compact else ("analyse",):
            command = [sys.executable, __file__, "--measure", what, str(folder)]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    finally:
        if options.keep is None:
            shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    main()
