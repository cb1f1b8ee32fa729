"""A plug-in order that breaks on command: the faults of the tests happen inside real workers.

What it does is read from the environment variable FRAGILE, ``ACTION:LENGTH[:FLAG]``: the action is done where
a block has LENGTH positions to fill; with a FLAG file only once.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from orderlens.rules.orders import ConfidenceOrder, StepView
from orderlens.rules.stats import PositionStats


class Fragile(ConfidenceOrder):
    id = "fragile"
    summary = "left to right, and breaks on command"

    def scores(self, view: StepView[PositionStats]) -> np.ndarray:
        action, _, rest = os.environ.get("FRAGILE", "").partition(":")
        length, _, flag = rest.partition(":")
        if action and (view.filling_C == int(length)).any() and _first(flag):
            _do(action)
        return -view.offset_R.astype(np.float64)


def _first(flag: str) -> bool:
    if not flag:
        return True
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _do(action: str) -> None:
    if action == "raise":
        raise ValueError("poisoned sample")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
