"""A tiny real run for the fault tests: numpy-only work units, importable and runnable as a program.

As a program it forks workers that compute the run and kills them, so that each round costs milliseconds:

    python worker.py run FOLDER UNITS
    python worker.py kill FOLDER UNITS KILLS SEED
    python worker.py crash FOLDER UNITS OPERATION [compact|repair]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from orderlens import provenance
from orderlens.rng import keyed_generator
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.reader import open_run
from orderlens.store.records import COMPLETE
from orderlens.store.specfile import create_spec
from orderlens.store.verify import repair_run
from orderlens.store.writer import RunWriter, execute, open_writer

LENGTH = 24
ORDERS = ("max-prob", "random")


def reveals(unit: int, traces: int = 2) -> pa.Table:
    """Return the reveals of one unit: ``traces`` samples under each order, as a scoring run has them."""
    tables = []
    for sample in range(traces):
        for order in ORDERS:
            rng = keyed_generator(0, unit, sample, order)
            logq = -rng.exponential(1.0, LENGTH).astype(np.float32)
            is_argmax = rng.random(LENGTH) < 0.6
            maximum = np.where(is_argmax, logq, logq / 2).astype(np.float32)
            second = (maximum - rng.random(LENGTH)).astype(np.float32)
            columns = {
                "sample_id": [f"s{unit:04d}-{sample}"] * LENGTH,
                "order": [order] * LENGTH,
                "seed": pa.array([None if order == "max-prob" else unit % 3] * LENGTH, pa.int64()),
                "block": np.arange(LENGTH) // 8,
                "step": np.arange(LENGTH),
                "position": 5 + rng.permutation(LENGTH),
                "token_id": rng.integers(0, 300, LENGTH),
                "logq": logq,
                "target_logprob": logq,
                "max_logprob": maximum,
                "second_logprob": second,
                "competitor_logprob": np.where(is_argmax, second, maximum),
                "entropy": rng.random(LENGTH).astype(np.float32),
                "is_argmax": is_argmax,
                "is_eos": rng.random(LENGTH) < 0.2,
                "is_special": rng.random(LENGTH) < 0.1,
                "is_overflow": np.arange(LENGTH) >= LENGTH - 3,
            }
            tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def tables(unit: int) -> dict[str, pa.Table]:
    """Return all tables of one unit."""
    table = reveals(unit)
    names = sorted({(row["sample_id"], row["order"], row["seed"]) for row in table.to_pylist()}, key=str)
    rows = [
        {"sample_id": s, "order": o, "seed": d, "token_ids": [unit, 1], "text": f"{s}é"} for s, o, d in names
    ]
    return {"reveals": table, "outputs": pa.Table.from_pylist(rows)}


def spec(units: int) -> dict[str, object]:
    """Return the run's spec."""
    return {"kind": "score", "model": {"name": "none"}, "units": units, "orders": list(ORDERS)}


def keyed_units(units: int) -> dict[str, int]:
    """Return unit key → unit."""
    return {f"unit-{unit:04d}": unit for unit in range(units)}


def compute(folder: str, units: int, lease_s: float = 5.0) -> None:
    """Compute (or resume) the run."""
    with open_writer(folder, spec(units), lease_s=lease_s) as writer:
        execute(writer, keyed_units(units), tables)


def forked(action: Callable[[], None]) -> int:
    """Run ``action`` in a child process and return its number."""
    child = os.fork()
    if child:
        return child
    try:
        action()
    except BaseException as error:  # noqa: BLE001  the child must never return into the parent's code
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)
    os._exit(0)


def kill_loop(folder: str, units: int, kills: int, seed: int) -> None:
    """Start two workers again and again and kill both at a random moment, then let one finish.

    When a run completes before enough kills, the next one starts in a folder of its own.
    """
    dice = random.Random(seed)
    done = rounds = 0
    runs = [f"{folder}/run-0"]
    while done < kills:
        if Path(runs[-1], COMPLETE).exists():
            runs.append(f"{folder}/run-{len(runs)}")
        workers = [forked(lambda: compute(runs[-1], units)) for _ in range(2)]
        time.sleep(dice.uniform(0.0, 0.12))
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        statuses = [os.waitpid(worker, 0)[1] for worker in workers]
        done += sum(os.WIFSIGNALED(status) for status in statuses)
        rounds += 1
    for run in runs:
        compute(run, units)
    sys.stdout.write(json.dumps({"kills": done, "rounds": rounds, "runs": runs}))


class DyingFolder(LocalFolder):
    """A folder whose process dies at the n-th change: odd numbers before it, even ones after it."""

    def __init__(self, root: str, operation: int) -> None:
        super().__init__(root)
        self.left = operation

    def __getattribute__(self, name: str):
        value = super().__getattribute__(name)
        if name not in ("put", "create", "remove", "move"):
            return value

        def dying(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                os._exit(9)
            result = value(*arguments, **options)
            self.left -= 1
            if self.left == 0:
                os._exit(9)
            return result

        return dying


def crash(folder: str, units: int, operation: int, what: str = "run") -> None:
    """Do something with a run and die at a given operation."""
    place = DyingFolder(folder, operation)
    if what == "compact":
        compact_run(place, target_rows=200)
    elif what == "repair":
        repair_run(place)
    else:
        writer = RunWriter(place, create_spec(place, spec(units), provenance.collect()), 5.0)
        execute(writer, keyed_units(units), tables)
    os._exit(0)


def main() -> None:
    provenance.collect()  # before any fork, so that children need not ask git again
    if sys.argv[1] == "kill":
        kill_loop(sys.argv[2], *(int(item) for item in sys.argv[3:6]))
    elif sys.argv[1] == "crash":
        crash(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
    else:
        compute(sys.argv[2], int(sys.argv[3]))
        open_run(sys.argv[2])


if __name__ == "__main__":
    main()
