"""Speed-up by several workers, and the number of workers that the store can serve.

    python benchmarks/bench_workers.py                       # 1 against 2 CPU workers on tiny
    python benchmarks/bench_workers.py --claims 1000         # simulated workers against a folder
    python benchmarks/bench_workers.py --claims 1000 --s3 seaweedfs    # the same against a local S3 server

The first command compares the time between the first and the last commit. It excludes starting Python and
loading the model, which a real study does once in hours; the total wall time is printed next to it. With
``--claims``, threads of a few processes claim and commit units of one row at full speed from a common start.
Real workers claim once per unit, so units per second × seconds per unit is the number of workers that the
store can serve. Requests, lost conditional writes and CPU seconds are counted on both sides.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from places import LOST, SERVERS, counted, disk, s3_server, shared_files

import orderlens as ol
from orderlens.runs.loop import WorkerRole, execute
from orderlens.runs.worker_log import read_log, read_states
from orderlens.store.folder import open_folder
from orderlens.store.reader import open_run
from orderlens.store.writer import open_writer

ORDERS = ["forced-ar", "max-prob", "random"]


def samples(count: int) -> list[ol.Sample]:
    """Return ``count`` texts of the bundled passages; some are repeated."""
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


class Counting(WorkerRole):
    """A worker that counts its units."""

    closes = False

    def __init__(self, place: int, count: int) -> None:
        self.place, self.count, self.units = place, count, 0

    def on_commit(self, key: str) -> None:
        """Count the unit."""
        self.units += 1


def tables(unit: int) -> dict[str, pa.Table]:
    row = {"sample_id": [f"s{unit}"], "order": ["forced-ar"], "block": [0], "step": [0], "position": [0]}
    return {"reveals": pa.table({**row, "token_id": [1], "logq": [-1.0]})}


@dataclass
class Share:
    """Counts of the simulated workers of one process.

    Attributes:
        units: number of units by worker.
        cpu_s: CPU seconds of the process, from the common start to the end of its last worker.
        requests: number of requests by kind; empty on a disk.
    """

    units: list[int]
    cpu_s: float
    requests: Counter[str]


def simulate(address: str, places: range, count: int, keys: dict[str, int], ready: Any, shares: Any) -> None:
    """Run some of ``count`` workers as threads of this process, and send back their counts."""
    sys.setswitchinterval(0.5)  # else hundreds of waiting threads wake up every 5 ms
    requests = counted() if "://" in address else Counter[str]()
    files = shared_files() if "://" in address else None
    shifts = [Counting(place, count) for place in places]
    together = threading.Barrier(len(shifts) + 1)

    def work(role: Counting) -> None:
        with open_writer(address, spec_of(keys), files) as writer:
            together.wait()
            execute(writer, keys, tables, role=role)

    threads = [threading.Thread(target=work, args=(role,)) for role in shifts]
    for thread in threads:
        thread.start()
    together.wait(3600)
    ready.wait(3600)
    cpu = time.process_time()
    for thread in threads:
        thread.join()
    shares.put(Share([role.units for role in shifts], time.process_time() - cpu, requests))


def spec_of(keys: dict[str, int]) -> dict[str, Any]:
    return {"kind": "bench", "units": len(keys)}


def claims(workers: int, units: int, server: str | None, processes: int) -> None:
    """Print the speed of simulated workers, and the cost for them and for the store."""
    keys = {f"unit-{number:06d}": number for number in range(units)}
    processes = min(processes, workers)
    spawn = multiprocessing.get_context("spawn")
    with s3_server(server) if server else disk() as place:
        open_writer(place.address, spec_of(keys)).close()
        ready, shares = spawn.Barrier(processes + 1), spawn.Queue()
        people = [
            spawn.Process(
                target=simulate,
                args=(place.address, range(number, workers, processes), workers, keys, ready, shares),
            )
            for number in range(processes)
        ]
        for process in people:
            process.start()
        ready.wait(3600)
        start, before = time.perf_counter(), place.server_cpu_s()
        found = [shares.get() for _ in people]
        seconds, served = time.perf_counter() - start, place.server_cpu_s() - before
        for process in people:
            process.join()
        cpu = time.process_time()
        with open_writer(place.address, spec_of(keys)) as writer:
            writer.finish(keys)
        closing = time.process_time() - cpu
        ids = open_run(place.address).reveals().to_arrow(["sample_id"])["sample_id"].to_pylist()
    report(workers, units, found, seconds, served)
    where = server or "a disk"
    print(f"{where}: {len(ids)} rows, {len(set(ids))} different; closing {closing:.2f} s of CPU")


def report(workers: int, units: int, shares: list[Share], seconds: float, served: float) -> None:
    done = [count for share in shares for count in share.units]
    used = sum(share.cpu_s for share in shares)
    requests = sum((share.requests for share in shares), Counter[str]())
    lost = requests.pop(LOST, 0)
    print(
        f"{workers} workers, {units} units: {seconds:.1f} s, {units / seconds:.1f} units/s; "
        f"{sum(done) - units} computed twice, {sum(map(bool, done))} workers had work (most {max(done)}); "
        f"CPU per unit: workers {1000 * used / units:.1f} ms, server {1000 * served / units:.1f} ms"
    )
    if requests:
        print(f"{requests.total() / units:.2f} requests per unit, {lost / units:.3f} lost conditional writes")
        print(", ".join(f"{name} {count / units:.2f}" for name, count in requests.most_common()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--claims", type=int, default=0, help="simulated workers")
    parser.add_argument("--units", type=int, default=0, help="number of units (default: ten per worker)")
    parser.add_argument("--s3", choices=SERVERS, help="on a local S3 server instead of a disk")
    parser.add_argument(
        "--processes", type=int, default=2, help="number of processes for the workers' threads"
    )
    options = parser.parse_args()
    if options.claims:
        claims(options.claims, options.units or 10 * options.claims, options.s3, options.processes)
    else:
        compare(options.texts, options.repeats)
