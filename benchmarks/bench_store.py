"""Bytes per token row, write speed, and per-sample statistics over a large run.

    python benchmarks/bench_store.py --rows 20000000

Writes synthetic runs through the real writer (512-token traces in blocks of 32, float32 log-probabilities
with free mantissas, Zipf-like token ids, reveal orders that are random inside each block), compacts them,
and measures. Each reading task runs in a separate process; its CPU time and peak memory are printed.
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

import numpy as np
import pyarrow as pa

from orderlens.common.rng import keyed_generator
from orderlens.runs.loop import execute
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.reader import open_run
from orderlens.store.records import load_snapshot
from orderlens.store.writer import open_writer

LENGTH, BLOCK, VOCABULARY, TRACES_PER_UNIT = 512, 32, 157_184, 64
LIMITS = {"bare": 7.0, "generation": 18.0, "parallel": 18.5, "scoring": 24.0}


def trace_table(kind: str, unit: int) -> pa.Table:
    """Return the reveals of one unit: ``bare`` has key, position, token and logq; ``parallel`` has sets."""
    rng = keyed_generator(0, kind, unit)
    rows = TRACES_PER_UNIT * LENGTH
    blocks = np.tile(np.arange(LENGTH), (TRACES_PER_UNIT, 1)).reshape(TRACES_PER_UNIT, -1, BLOCK)
    position = rng.permuted(blocks, axis=2).reshape(TRACES_PER_UNIT, LENGTH)
    position = position + rng.integers(40, 300, (TRACES_PER_UNIT, 1))
    ids = [f"{kind}-{unit * TRACES_PER_UNIT + item:07d}" for item in range(TRACES_PER_UNIT)]
    columns: dict[str, object] = {
        "sample_id": np.repeat(ids, LENGTH),
        "task": pa.array(["cmath"] * rows),
        "order": pa.array(["max-prob"] * rows),
        "block": np.tile(np.arange(LENGTH) // BLOCK, TRACES_PER_UNIT),
        "step": np.tile(np.arange(LENGTH), TRACES_PER_UNIT),
        "position": position.ravel(),
        "token_id": np.minimum(np.exp(rng.normal(7.0, 2.2, rows)), VOCABULARY - 1).astype(np.int32),
    }
    return pa.table({**columns, **numbers(rng, kind, rows), **(passes(rng) if kind == "parallel" else {})})


def passes(rng: np.random.Generator) -> dict[str, object]:
    """Return the passes of a threshold policy: sets of 2.5 tokens on average that end with their block."""
    rows = TRACES_PER_UNIT * LENGTH
    begins = rng.random(rows) < 0.4
    begins[::BLOCK] = True
    number = np.cumsum(begins)
    first = np.repeat(number[::LENGTH], LENGTH)
    return {"forward": number - first, "n_committed": np.bincount(number)[number]}


def numbers(rng: np.random.Generator, kind: str, rows: int) -> dict[str, object]:
    """Return log-probabilities that compress as badly as real ones: only implied values repeat."""
    top = 1 / (1 + np.exp(-rng.normal(2.0, 3.0, rows)))
    maximum = np.log(top).astype(np.float32)
    second = np.minimum(np.log1p(-top) + np.log(rng.uniform(0.2, 1, rows)), maximum).astype(np.float32)
    is_argmax = rng.random(rows) < np.maximum(top, 0.2)
    other = (second - rng.exponential(1.0, rows)).astype(np.float32)
    logq = np.where(is_argmax, maximum, other)
    if kind == "bare":
        return {"logq": logq}
    flags = np.tile(np.arange(LENGTH) > 0.8 * LENGTH, rows // LENGTH)
    common = {
        "logq": logq,
        "max_logprob": maximum,
        "second_logprob": second,
        "entropy": (-top * np.log(top) + (1 - top) * rng.uniform(1, 8, rows)).astype(np.float32),
        "is_eos": flags,
        "is_special": np.zeros(rows, bool),
        "is_overflow": np.zeros(rows, bool),
        "is_argmax": is_argmax,
        "n_tied": np.ones(rows, np.int32),
        "n_committed": np.ones(rows, np.int32),
    }
    if kind == "scoring":
        competitor = np.where(is_argmax, second, maximum)
        return {**common, "target_logprob": logq, "competitor_logprob": competitor}
    tempered = (logq * 1.2 - 0.01 * rng.random(rows)).astype(np.float32)
    return {
        **common,
        "temperature": np.full(rows, 0.7),
        "sample_seed": np.zeros(rows, int),
        "tempered_logq": tempered,
    }


def write_run(folder: Path, kind: str, rows: int) -> dict[str, float]:
    """Write and compact a run; return sizes in bytes per row and CPU seconds."""
    count = -(-rows // (LENGTH * TRACES_PER_UNIT))
    spent = 0.0

    def work(unit: int) -> dict[str, pa.Table]:
        nonlocal spent
        start = time.process_time()
        table = trace_table(kind, unit)
        spent += time.process_time() - start
        return {"reveals": table}

    start = time.process_time()
    with open_writer(folder, {"kind": kind, "rows": rows}) as writer:
        execute(writer, {f"{kind}-{unit:05d}": unit for unit in range(count)}, work)
    written = time.process_time() - start - spent
    real = load_snapshot(LocalFolder(folder)).rows()["reveals"]
    before = sum(part.size for part in load_snapshot(LocalFolder(folder)).parts())
    small = measured("sql_mean_var", folder)
    start = time.process_time()
    done = compact_run(LocalFolder(folder))
    return {
        "rows": real,
        "bytes_per_row": before / real,
        "bytes_per_row_compacted": done.bytes_after / real,
        "bytes_on_disk_per_row": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        / real,
        "write_cpu_s": written,
        "compact_cpu_s": time.process_time() - start,
        "small_parts": done.parts_before,
        "small_parts_sql_mean_var_cpu_s": small["cpu_s"],
        "small_parts_sql_mean_var_peak_mb": small["peak_mb"],
        "parts": done.parts_after,
    }


def read_task(name: str, folder: str) -> dict[str, float]:
    """Run one reading task in this process and return its cost."""
    run = open_run(folder)
    if name == "sql_mean_var":
        query = (
            'SELECT sample_id, "order", avg(logq::DOUBLE), var_pop(logq::DOUBLE) FROM reveals GROUP BY ALL'
        )
        result = run.sql(query).to_arrow().num_rows
    elif name == "sql_samples_view":
        result = run.sql("SELECT * FROM samples").to_arrow().num_rows
    elif name == "samples":
        result = run.samples().to_arrow().num_rows
    else:
        return one_trace(run, load_snapshot(LocalFolder(folder)).bundles[-1].last or "")
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"traces": result, "cpu_s": used.ru_utime + used.ru_stime, "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Return this program's peak memory (getrusage would count the parent's, from before exec)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def one_trace(run: object, sample_id: str) -> dict[str, float]:
    """Return the median time of fetching one trace, all columns."""
    times = []
    for _ in range(21):
        start = time.perf_counter()
        rows = len(run.trace(sample_id, "max-prob"))  # type: ignore[attr-defined]
        times.append(time.perf_counter() - start)
    return {"rows": rows, "median_ms": 1e3 * float(np.median(times)), "first_ms": 1e3 * times[0]}


def measured(name: str, folder: Path) -> dict[str, float]:
    """Run a reading task in a fresh process (start and imports included in its CPU time)."""
    command = [sys.executable, __file__, "--read", name, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--read", nargs=2, metavar=("TASK", "RUN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read_task(*options.read)))
        return
    base = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for kind, limit in LIMITS.items():
            result = write_run(base / kind, kind, options.rows)
            print(json.dumps({"bench": f"size of a {kind} run", "limit": limit, **result}))
        for name in ("sql_mean_var", "sql_samples_view", "samples", "one_trace"):
            for kind in ("bare", "generation"):
                print(json.dumps({"bench": f"{name} over the {kind} run", **measured(name, base / kind)}))
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
