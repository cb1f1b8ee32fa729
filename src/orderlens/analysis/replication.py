"""The folder of a replication: which of its runs are read together for which kind of traces."""

from __future__ import annotations

from pathlib import Path

PLAN_FILE = "plan.json"
"""Marks a replication; its runs lie below ``runs``."""

RUNS_OF: dict[str, tuple[str, ...]] = {
    "score": ("score", "measure"),
    "generate": ("generate", "tokens"),
    "ending": ("generate", "questions", "tokens"),
    "sweep": ("generate", "sweep"),
}
"""Which run folders are read together; ``ending`` is for EOS: it includes the demo's questions. Folders of
earlier versions keep the texts of tokens in a run of their own, ``tokens``."""


def is_replication(place: Path) -> bool:
    """Whether ``place`` is the folder of a replication."""
    return (place / PLAN_FILE).is_file()


def main_run(traces: str) -> str:
    """Return the run without which a kind of traces is not there."""
    return "generate" if traces == "ending" else traces
