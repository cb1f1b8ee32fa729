"""Time until the viewer shows its first page of a large run.

    python benchmarks/bench_viewer.py --rows 10000000 [--run FOLDER] [--browser /usr/bin/chromium]

Writes a synthetic run through the real writer (128-token traces under five orders, with texts and verdicts;
``--run`` keeps it or reuses an existing one). Starts the viewer in a separate process and measures from the
first request on: the responses of the first page (page, script, catalogue, first rows), the first rows of the
complete list, the complete list, one sample. With ``--browser`` also Chromium's first contentful paint and
the first row on the page, right after the start of another viewer. The start of the process is printed
separately.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from orderlens.common.rng import keyed_generator
from orderlens.runs.loop import execute
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.writer import open_writer

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
    if unit == 0:
        made["tokens"] = pieces
    return {name: pa.table(columns) for name, columns in made.items()}


def write_run(folder: Path, n_rows: int) -> None:
    n_units = max(1, n_rows // (PER_UNIT * len(ORDERS) * LENGTH))
    spec = {"kind": "evaluate", "model": {"name": "made up"}, "orders": list(ORDERS), "rows": n_rows}
    with open_writer(folder, spec) as writer:
        execute(writer, {f"unit-{unit:05d}": unit for unit in range(n_units)}, unit_tables)
    compact_run(LocalFolder(folder))


@contextmanager
def viewer(folder: Path) -> Iterator[tuple[str, float]]:
    """Start a viewer; yield its address and the seconds until it was printed."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "orderlens", "view", str(folder), "--no-browser", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        lines = []
        while not lines or lines[-1].rstrip() != "}":
            lines.append(process.stdout.readline())
        yield json.loads("".join(lines))["address"], time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> dict[str, float]:
    """Return seconds from the first request until each response, in the order of the page's requests."""
    base, token = address.partition("/?")[0], urlsplit(address).query.partition("=")[2]

    def get(path: str) -> bytes:
        request = urllib.request.Request(base + path, headers={"X-OrderLens-Token": token})
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    began, found = time.perf_counter(), {}
    for path in ("/", "/assets/page.css", "/assets/viewer.js", "/api/catalogue"):
        get(path)
    first = json.loads(get("/api/samples?whole=false"))
    found[f"first page ({first['state']})"] = time.perf_counter() - began
    whole = json.loads(get("/api/samples?whole=true"))
    found["everything known"] = time.perf_counter() - began
    for name, path in {
        "sorted by EOS run": "/api/samples?sort=cascade",
        "text search": "/api/samples?text=says%20100",
        "one sample": f"/api/sample?id={whole['rows'][0]['sample_id']}",
    }.items():
        began = time.perf_counter()
        get(path)
        found[name] = time.perf_counter() - began
    return found


def painted(address: str, chromium: str) -> dict[str, float]:
    """Return Chromium's first contentful paint and the first row, in seconds from the start of loading."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("table.samples tbody tr")
        row = page.evaluate("performance.now()")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        browser.close()
    return {"first contentful paint": paint / 1000, "first rows on the page": row / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--run", type=Path, help="folder of the run (default: a temporary folder)")
    parser.add_argument("--browser", help="path of Chromium, to measure painting")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp())
    folder = options.run or base / "run"
    try:
        if not folder.exists():
            write_run(folder, options.rows)
        with viewer(folder) as (address, seconds):
            print(json.dumps({"bench": "start of the process", "seconds": round(seconds, 3)}))
            for name, value in answers(address).items():
                print(json.dumps({"bench": name, "rows": options.rows, "seconds": round(value, 3)}))
        if options.browser:
            with viewer(folder) as (address, _):
                for name, value in painted(address, options.browser).items():
                    print(json.dumps({"bench": name, "rows": options.rows, "seconds": round(value, 3)}))
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
