"""``orderlens runs watch``: shows the state of a run's workers, from any terminal or machine.

No postponed annotations here: the types of fields are read when the command line is built.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.cli.command import Output, takes
from orderlens.cli.runs import RunPath
from orderlens.runs.request import Opt

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from orderlens.runs.worker_log import WorkerState
    from orderlens.store.protocol import Folder

SILENT_S = 60.0
"""Seconds without a new state after which a worker is shown as silent."""


@dataclass(frozen=True, kw_only=True)
class Watch(Output):
    """Show the progress of a run until it ends: units, tokens per second, state of each worker."""

    run: RunPath
    every: Annotated[float, Opt("Seconds between two updates.", least=0.2)] = 2.0
    once: Annotated[bool, Opt("Print the current state and exit.")] = False


@takes(Watch)
def watch(request: Watch) -> None:
    """Show the state until the run ends."""
    from rich.console import Group
    from rich.live import Live

    from orderlens.cli.console import print_json, stdout
    from orderlens.store.folder import open_folder
    from orderlens.store.specfile import read_spec

    folder = open_folder(request.run)
    read_spec(folder)
    if request.json:
        print_json(look(folder))
        return
    if request.once or not stdout.is_terminal:  # a file gets one state, not repeated screens
        for part in picture(look(folder)):
            stdout.print(part)
        return
    with Live(console=stdout, auto_refresh=False, transient=False) as live:
        while True:
            facts = look(folder)
            live.update(Group(*picture(facts)), refresh=True)
            if facts["state"] != "running":
                return
            time.sleep(request.every)


def look(folder: "Folder") -> dict[str, Any]:
    """Return the state of a run and its workers as plain values."""
    from orderlens.runs.worker_log import read_failures, read_states, steps_left
    from orderlens.store.overview import overview

    facts, states = overview(folder), read_states(folder)
    busy = [state for state in states if not state.over]
    return {
        "run": facts["run"],
        "state": "running" if busy and facts["state"] == "incomplete" else facts["state"],
        "units": facts.get("units", 0),
        "rate": sum(state.rate for state in busy),
        "left": steps_left(states),
        "failures": [asdict(row) for row in read_failures(folder)],
        "workers": [
            {**asdict(state), "rate": state.rate, "note": note(state, time.time())} for state in states
        ],
    }


def note(state: "WorkerState", now: float) -> str:
    """Return the worker's state for the table; ``dead`` or ``silent`` if it stopped writing its state."""
    from orderlens.runs.worker_log import ENDED

    silent = now - state.time
    if state.state in ENDED:
        return state.state
    if state.over:
        return "dead"
    return state.state if silent < SILENT_S else f"silent for {silent:.0f} s"


def picture(facts: dict[str, Any]) -> "list[Text | Table]":
    """Return the state of a run as lines and a table."""
    from rich.table import Table
    from rich.text import Text

    head = f"{facts['run']}: {facts['state']}, units committed: {facts['units']}{_pace(facts)}"
    columns = ("worker", "host", "device", "state", "units", "tokens", "tokens/s")
    table = Table(*columns, box=None, pad_edge=False)
    for row in facts["workers"]:
        table.add_row(row["name"], row["host"], row["device"], row["note"], *_numbers(row))
    return [Text(head, overflow="fold"), table, *_failed(facts["failures"])]


def _pace(facts: dict[str, Any]) -> str:
    """Return speed and remaining time of a running run."""
    if facts["state"] != "running":
        return ""
    rate, left = facts["rate"], facts["left"]
    about = f", {left:,} tokens left" if left is not None else ""
    minutes = f", about {left / rate / 60:,.0f} min" if left is not None and rate > 0 else ""
    return f", {rate:,.0f} tokens/s{about}{minutes}"


def _numbers(row: dict[str, Any]) -> list[str]:
    return [f"{row['units']:,}", f"{row['tokens']:,}", f"{row['rate']:,.0f}"]


def _failed(rows: Sequence[dict[str, Any]]) -> "list[Text]":
    from rich.text import Text

    return [
        Text(f"failed: {', '.join(row['samples'][:3])} (attempt {row['attempt'] + 1}): {row['error']}")
        for row in rows
    ]
