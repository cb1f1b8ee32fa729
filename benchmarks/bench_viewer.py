"""How long the viewer takes to show its first page over a large run.

    python benchmarks/bench_viewer.py --rows 10000000 [--keep FOLDER] [--browser]

Writes a synthetic run through the real writer (128-token traces under five orders, with texts and verdicts),
starts the viewer on it in a process of its own, and measures from the start of the page's loading: the first
paint and the first rows in Chromium (``--browser``), or the answers that make them up. ``cold`` is the first
visit after the start, ``warm`` a second one; starting the process is reported apart.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from orderlens.rng import keyed_generator
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.writer import execute, open_writer

LENGTH, BLOCK, VOCABULARY, PER_UNIT = 128, 32, 32_000, 64
ORDERS = ("forced-ar", "random", "max-prob", "top-margin", "entropy")


def unit_tables(unit: int) -> dict[str, pa.Table]:
    """Return the rows of 64 samples under every order."""
    rng = keyed_generator(0, "viewer", unit)
    ids = [f"sample-{unit * PER_UNIT + item:07d}" for item in range(PER_UNIT)]
    traces, rows = PER_UNIT * len(ORDERS), PER_UNIT * len(ORDERS) * LENGTH
    blocks = np.tile(np.arange(LENGTH), (traces, 1)).reshape(traces, -1, BLOCK)
    key = {"task": "cmath", "temperature": 0.0}
    orders, samples = np.repeat(ORDERS, PER_UNIT), np.tile(ids, len(ORDERS))
    ends = rng.integers(LENGTH // 2, LENGTH, traces)
    position = rng.permuted(blocks, axis=2).reshape(traces, LENGTH)
    top = 1 / (1 + np.exp(-rng.normal(2.0, 3.0, rows)))
    eos = position >= ends[:, None]
    reveals = {
        "sample_id": np.repeat(samples, LENGTH),
        "order": np.repeat(orders, LENGTH),
        **{name: pa.array([value] * rows) for name, value in key.items()},
        "block": np.tile(np.arange(LENGTH) // BLOCK, traces),
        "step": np.tile(np.arange(LENGTH), traces),
        "position": position.ravel() + 32,
        "token_id": np.where(eos, 0, rng.integers(1, VOCABULARY, position.shape)).ravel(),
        "logq": np.log(top).astype(np.float32),
        "entropy": (-top * np.log(top)).astype(np.float32),
        "is_eos": eos.ravel(),
    }
    trace = {
        "sample_id": samples,
        "order": orders,
        **{name: pa.array([value] * traces) for name, value in key.items()},
    }
    text = [f"{name} says {number}: " + "word " * 40 for name, number in zip(samples, ends, strict=True)]
    outputs = {**trace, "text": text, "prompt_text": [f"Question {name}" for name in samples]}
    verdicts = {**trace, "correct": rng.random(traces) < 0.5, "grader": ["made up"] * traces}
    pieces = {"token_id": np.arange(VOCABULARY), "piece": [f" t{item}" for item in range(VOCABULARY)]}
    made = {"reveals": reveals, "outputs": outputs, "verdicts": verdicts}
    return {name: pa.table(columns) for name, columns in (made | ({"tokens": pieces} if unit == 0 else {})).items()}


def write_run(folder: Path, n_rows: int) -> None:
    n_units = max(1, n_rows // (PER_UNIT * len(ORDERS) * LENGTH))
    spec = {"kind": "evaluate", "model": {"name": "made up"}, "orders": list(ORDERS), "rows": n_rows}
    with open_writer(folder, spec) as writer:
        execute(writer, {f"unit-{unit:05d}": unit for unit in range(n_units)}, unit_tables)
    compact_run(LocalFolder(folder))
