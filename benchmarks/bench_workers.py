"""What several workers gain, and how many the store can serve.

    python benchmarks/bench_workers.py                       # 1 against 2 CPU workers on tiny
    python benchmarks/bench_workers.py --claims 1000         # simulated workers against a folder
    python benchmarks/bench_workers.py --claims 1000 --s3    # the same against a local S3 server

The first compares the time between the first and the last commit, so that starting Python and loading the
model, which a real study pays once in hours, do not count; the whole wall time stands beside it. The second
lets threads claim and commit units of one row as fast as they can: real workers ask once per unit, so units
per second times the seconds that a unit takes is the number of workers that the store can serve. On S3 every
HTTP request is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from places import disk, s3_server

import orderlens as ol
from orderlens.store.execute import Shift, execute
from orderlens.store.folder import open_folder
from orderlens.store.reader import open_run
from orderlens.store.workers import read_log, read_states
from orderlens.store.writer import open_writer

ORDERS = ["forced-ar", "max-prob", "random"]


def samples(count: int) -> list[ol.Sample]:
    """Return so many texts of the bundled passages, some of them more than once."""
    found = ol.load_samples("passages", "tiny", prefix_tokens=32, target_tokens=64)
    return [replace(found[i % len(found)], id=f"{i:03d}") for i in range(count)]


def busy_seconds(folder: Path) -> float:
    """Return the time from the first loaded model to the last commit, over all workers."""
    place = open_folder(folder)
    events = [row for state in read_states(place) for row in read_log(place, state.name)]
    begin = max(row["time"] for row in events if row["event"] in ("loaded", "started"))
    return max(row["time"] for row in events if row["event"] == "committed") - begin


def compare(count: int, repeats: int) -> None:
    """Print one line per repeat: seconds with one and with two workers of one thread, and their ratio."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: one worker has one thread, too
    texts = samples(count)
    for number in range(repeats):
        seconds, walls = {}, {}
        for workers in (1, 2):
            with tempfile.TemporaryDirectory() as out:
                start = time.perf_counter()
                run(Path(out) / "run", texts, ol.Engine(workers=workers, threads=1))
                walls[workers] = time.perf_counter() - start
                seconds[workers] = busy_seconds(Path(out) / "run")
        print(
            f"repeat {number}: 1 worker {seconds[1]:.1f} s, 2 workers {seconds[2]:.1f} s, ratio "
            f"{seconds[1] / seconds[2]:.2f} (with start and loading {walls[1]:.1f} and {walls[2]:.1f} s)"
        )


def run(out: Path, texts: list[ol.Sample], engine: ol.Engine) -> None:
    ol.score("tiny", texts, ORDERS, batch_size=2, out=out, engine=engine, device="cpu")


class Counting(Shift):
    """Counts who computed what."""

    closes = False

    def __init__(self, worker: int, count: int, counts: Counter[int]) -> None:
        self.place, self.count, self._counts = worker, count, counts

    def ends(self, key: str) -> None:
        """Count the unit."""
        self._counts[self.place] += 1


def tables(unit: int) -> dict[str, pa.Table]:
    row = {"sample_id": [f"s{unit}"], "order": ["forced-ar"], "block": [0], "step": [0], "position": [0]}
    return {"reveals": pa.table({**row, "token_id": [1], "logq": [-1.0]})}


def claims(workers: int, units: int, on_s3: bool) -> None:
    """Print how fast simulated workers get through units, how evenly, and what it costs the store."""
    counts: Counter[int] = Counter()
    keys = {f"unit-{number:06d}": number for number in range(units)}
    spec = {"kind": "bench", "units": units}
    with s3_server() if on_s3 else disk() as (out, files, requests):
        open_writer(out, spec, files).close()

        ready = threading.Barrier(workers + 1)

        def work(number: int) -> None:
            with open_writer(out, spec, files) as writer:
                ready.wait()
                execute(writer, keys, tables, shift=Counting(number, workers, counts))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        sys.setswitchinterval(0.5)  # else a thousand waiting threads wake up every 5 ms
        for thread in threads:
            thread.start()
        ready.wait()
        start, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.join()
        seconds, used, working = time.perf_counter() - start, time.process_time() - cpu, Counter(requests)
        with open_writer(out, spec, files) as writer:
            writer.finish(keys)
        closing = time.perf_counter() - start - seconds
        total = Counter(requests)
        ids = open_run(out, files).reveals().to_arrow(["sample_id"])["sample_id"].to_pylist()
    twice = sum(counts.values()) - units
    print(
        f"{workers} workers, {units} units on {'S3' if on_s3 else 'a disk'}: {seconds:.1f} s, "
        f"{units / seconds:.0f} units/s, {1000 * used / units:.1f} ms of the clients' CPU per unit; "
        f"{len(ids)} rows, {len(set(ids))} of them different, {twice} units computed twice, "
        f"{len(counts)} workers had work (most {max(counts.values())}); closing {closing:.1f} s"
    )
    if on_s3:
        ours, whole = working.total() / units, total.total() / units
        print(f"requests per unit: {ours:.2f} of the workers, {whole:.2f} with closing")
        print(", ".join(f"{name} {count / units:.2f}" for name, count in total.most_common()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--claims", type=int, default=0, help="simulated workers")
    parser.add_argument("--units", type=int, default=0, help="units that they share (ten each)")
    parser.add_argument("--s3", action="store_true")
    given = parser.parse_args()
    if given.claims:
        claims(given.claims, given.units or 10 * given.claims, given.s3)
    else:
        compare(given.texts, given.repeats)
