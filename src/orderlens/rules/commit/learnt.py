"""A commit rule whose set sizes lose least for a given number of passes (ARDM's dynamic programme).

The losses come from a file, ``orderlens analyze RUN --table losses --format json --out FILE``, so that they
can be learnt on other texts than those that are decoded. Does not depend on models or runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from orderlens.errors import UserInputError, one_line
from orderlens.rules.protocol import Schedule, parse_whole, whole
from orderlens.rules.stats import IntArray


@dataclass(eq=False)
class LearntSchedule(Schedule):
    """K passes per block whose sizes minimise Σ (t − s) L_s, L_s being the loss per token with s known.

    ARDM (arXiv 2110.02037; google-research ``autoregressive_diffusion/utils/dynamic_programming.py``): a pass
    that reveals the positions s…t−1 of the path costs (t − s) L_s, because none of them sees the others. The
    recursion C[k, t] = min over s of C[k−1, s] + (t − s) L_s is exact. L is the mean loss of a uniformly
    random order, for which the sum is the expected loss; for other orders it is a heuristic. A block with
    another number of positions uses L at the same shares, interpolated linearly.
    """

    id = "schedule"
    summary = "schedule=K:FILE: the sizes of K sets per block that lose least by the losses in FILE (ARDM)"
    k: int = whole(1, "K", 8)
    file: str = ""
    losses: tuple[float, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        if len(values) != 2 or not all(values):
            raise UserInputError(
                "'schedule' takes the number of passes and a file of losses, e.g. schedule=8:losses.json; "
                "write one with 'orderlens analyze RUN --table losses --format json --out FILE'"
            )
        return cls(parse_whole("schedule", values[0], 1, "K"), values[1], read_losses(values[1]))

    @property
    def spec(self) -> str:
        return f"{self.id}={self.k}:{self.file}"

    def passes(self, n_positions: int) -> IntArray:
        sizes = np.array(best_sizes(at_size(self.losses, n_positions), self.k), np.int64)
        return np.repeat(np.arange(len(sizes)), sizes)


def at_size(losses: tuple[float, ...], n_positions: int) -> tuple[float, ...]:
    """Return the losses [n] of a block of ``n_positions``, at equal shares of revealed positions."""
    if len(losses) == n_positions:
        return losses
    shares = np.arange(n_positions) / n_positions
    return tuple(np.interp(shares, np.arange(len(losses)) / len(losses), losses).tolist())


@lru_cache(maxsize=256)
def best_sizes(losses: tuple[float, ...], k: int) -> tuple[int, ...]:
    """Return the sizes of min(k, n) sets with the smallest Σ (t − s) L_s.

    Args:
        losses: L_s, loss per token when s positions are revealed [n].
        k: number of passes.
    """
    n = len(losses)
    t_N, loss_N = np.arange(n + 1), np.array(losses)
    cost_N = np.where(t_N == 0, 0.0, np.inf)
    came: list[IntArray] = []
    for _ in range(min(k, n)):
        # Row s, column t: the cost of one set from s to t; a set is not empty.
        step_NN = (t_N[None, :] - t_N[:n, None]) * loss_N[:, None]
        total_NN = np.where(t_N[None, :] > t_N[:n, None], cost_N[:n, None] + step_NN, np.inf)
        came.append(total_NN.argmin(axis=0))
        cost_N = total_NN.min(axis=0)
    ends = [n]
    for source_N in reversed(came):
        ends.append(int(source_N[ends[-1]]))
    return tuple(np.diff(ends[::-1]).tolist())


def read_losses(path: str) -> tuple[float, ...]:
    """Return L_s by number of revealed positions from the JSON of the table ``losses``, one order."""
    where = f"'schedule': file {path}"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = _rows(found)
        orders = {str(row["order"]) for row in rows}
        values = {int(row["revealed"]): float(row["loss"]["value"]) for row in rows}
    except OSError as error:
        raise UserInputError(f"{where}: {one_line(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserInputError(
            f"{where} is not the JSON of the table losses; write it with "
            "'orderlens analyze RUN --table losses --format json --out FILE'"
        ) from error
    if len(orders) != 1 or sorted(values) != list(range(len(values))):
        raise UserInputError(f"{where} must hold one order and every number of revealed positions from 0 on")
    return tuple(values[place] for place in range(len(values)))


def _rows(found: Any) -> list[Any]:
    """Return the rows of the table, alone or in the list of tables that ``analyze`` writes."""
    tables = found if isinstance(found, list) else found.get("tables", [found])
    (own,) = [item for item in tables if item["table"] == "losses"]
    rows: list[Any] = own["rows"]
    return rows
