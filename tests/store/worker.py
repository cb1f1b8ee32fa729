"""A tiny real run for the fault tests: numpy-only work units, importable and runnable as a program.

As a program it forks workers that compute the run and kills them, so that each round costs milliseconds
(the parent only forks and waits, it starts no threads):

    python worker.py run FOLDER UNITS
    python worker.py kill FOLDER UNITS KILLS SEED
    python worker.py crash WHAT SOURCE FOLDER UNITS
    python worker.py claim FOLDER KEY
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from orderlens.common.machine import provenance
from orderlens.common.rng import keyed_generator
from orderlens.runs.loop import execute
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder
from orderlens.store.leases import LeaseBook
from orderlens.store.reader import open_run
from orderlens.store.records import COMPLETE
from orderlens.store.specfile import create_spec
from orderlens.store.verify import repair_run, verify_run
from orderlens.store.writer import RunWriter, open_writer

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

    When a run completes before enough kills, the next one starts in a new folder.
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
        done += sum(exit_code(worker) == -signal.SIGKILL for worker in workers)
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


def compute_until(folder: str, units: int, operation: int) -> None:
    """Compute the run and die at an operation."""
    place = DyingFolder(folder, operation)
    writer = RunWriter(place, create_spec(place, spec(units), provenance()), 5.0)
    execute(writer, keyed_units(units), tables)


def action_of(what: str, folder: str, units: int) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Return what dies at an operation, and what the user does next."""
    if what == "compact":
        here = LocalFolder(folder)
        return lambda operation: compact_to(DyingFolder(folder, operation)), lambda: compact_to(here)
    if what == "repair":

        def repair_and_resume() -> None:
            repair_run(LocalFolder(folder))
            compute(folder, units)

        return lambda operation: discard(repair_run(DyingFolder(folder, operation))), repair_and_resume
    return lambda operation: compute_until(folder, units, operation), lambda: compute(folder, units)


def compact_to(folder: LocalFolder) -> None:
    """Compact to parts of two units."""
    compact_run(folder, target_rows=200)


def discard(value: object) -> None:
    """Ignore a result."""


def rows_of(folder: str) -> list[tuple[object, ...]]:
    """Return what a reader sees, sorted: the check after each crash."""
    columns = ["sample_id", "order", "step", "position", "logq", "competitor_logprob"]
    table = open_run(folder).reveals().to_arrow(columns)
    outputs = open_run(folder).outputs().to_arrow(["sample_id", "order", "text"])
    return [row for part in (table, outputs) for row in sorted(zip(*part.to_pydict().values(), strict=True))]


def check_after(what: str, source: str, folder: str, units: int) -> None:
    """Continue after a crash; the rows and the records must be those of an undisturbed run."""
    expected = rows_of(source)
    if what == "compact":  # nothing may be lost or doubled even before the next compaction
        assert rows_of(folder) == expected
    action_of(what, folder, units)[1]()
    assert rows_of(folder) == expected
    report = verify_run(LocalFolder(folder))
    assert report.ok, report.findings
    assert report.leftovers == [], report.leftovers
    assert open_run(folder).is_complete


def damage(folder: str) -> None:
    """Flip a bit in a part of unit 1."""
    (path,) = Path(folder, "parts", "reveals").glob("unit-0001-*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(bytes(data))


def crash_loop(what: str, source: str, folder: str, units: int) -> None:
    """Die at the first, second, … operation of an action until it completes; continue and check each time."""
    died: list[int] = []
    failed: list[int] = []
    for operation in range(1, 400):
        place = f"{folder}/{operation}"
        if what != "run":
            shutil.copytree(source, place)
        if what == "repair":
            damage(place)
        dying = action_of(what, place, units)[0]
        code = exit_code(forked(lambda dying=dying, operation=operation: dying(operation)))
        if exit_code(forked(lambda place=place: check_after(what, source, place, units))) != 0:
            failed.append(operation)
        if code == 0:
            break
        assert code == 9, code
        died.append(operation)
    sys.stdout.write(json.dumps({"died": len(died), "failed": failed, "completed": code == 0}))


def exit_code(child: int) -> int:
    """Wait for a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    # Before any fork, so that children need not: ask git, and load what pyarrow loads when first used.
    provenance()
    with suppress(ImportError):
        importlib.import_module("pandas")
    what, *rest = sys.argv[1:]
    if what == "kill":
        kill_loop(rest[0], *(int(item) for item in rest[1:]))
    elif what == "crash":
        crash_loop(rest[0], rest[1], rest[2], int(rest[3]))
    elif what == "claim":
        LeaseBook(LocalFolder(rest[0]), 1000).acquire(rest[1])
        os._exit(9)
    else:
        compute(rest[0], int(rest[1]))


if __name__ == "__main__":
    main()
