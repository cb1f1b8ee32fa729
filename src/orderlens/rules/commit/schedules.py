"""Commit rules with known counts per pass: fixed, even, by a cosine, by time, or learnt from losses.

Passes in which a published schedule reveals nothing are left out, because they would not change anything.
Counts are computed in whole numbers or fractions, without rounding. The set sizes of ``learnt`` lose least
for a given number of passes (ARDM's dynamic programme). Its losses come from a file, ``orderlens analyze RUN
--table losses --format json --out FILE``, and may come from other texts than those that are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import cos, floor, pi
from pathlib import Path
from typing import Any, Self

import numpy as np

from orderlens.errors import UserInputError, one_line
from orderlens.rules.protocol import (
    Commit,
    CommitView,
    Schedule,
    numbers_digest,
    parse_whole,
    plain,
    real,
    whole,
)
from orderlens.rules.stats import BoolArray, FloatArray, IntArray


@dataclass(eq=False)
class Top(Schedule):
    """The K best positions at every pass; the last pass of a block reveals the rest."""

    id = "top"
    summary = "top=K: the first K positions of the order at every pass"
    k: int = whole(1, "K", 4)

    def passes(self, n_positions: int) -> IntArray:
        return np.arange(n_positions, dtype=np.int64) // self.k

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        if self.k == 1:
            return view.best(scores_R)
        chosen: BoolArray = view.ranks(scores_R) < self.k
        return chosen


@dataclass(eq=False)
class Steps(Schedule):
    """A block's positions split evenly over N passes; the first passes get the remainder.

    LLaDA's ``get_num_transfer_tokens`` (ML-GSAI/LLaDA ``generate.py``; steps = length by default, which is
    one per pass). N counts the passes of a block; LLaDA's ``steps`` are those of all blocks. SDAR and
    LLaDA-2.0 split the block length even if the prompt fills a part of it, and SDAR may then overwrite
    tokens; here only the positions to fill are split (``above=T:N:B`` splits B positions).
    """

    id = "steps"
    summary = "steps=N: a block's positions split evenly over N passes, the remainder in the first ones"
    n: int = whole(1, "N", 8)

    def passes(self, n_positions: int) -> IntArray:
        return _passes(_even(n_positions, self.n))


@dataclass(eq=False)
class Cosine(Schedule):
    """MaskGIT's counts: after pass t of N, floor(n cos(π (t+1) / 2N)) positions are still masked.

    google-research/maskgit ``mask_schedule.py`` and ``parallel_decode.py`` (12 iterations, cosine): every
    pass reveals at least one position, and the last pass reveals the rest. The cosine is exact where n·cos is
    a whole number (N divisible by 3), because float32 and float64 disagree there. With N > n the public loop
    repeats passes that reveal nothing; they are left out.
    """

    id = "cosine"
    summary = "cosine=N: MaskGIT's counts over N passes, few positions first and many last"
    n: int = whole(1, "N", 8)

    def passes(self, n_positions: int) -> IntArray:
        return _passes(_cosine(n_positions, self.n))

    def planned_passes(self, n_positions: int) -> int:
        """Return N, by which MaskGIT's noise decreases, also if passes are left out."""
        return self.n


@dataclass(eq=False)
class Power(Schedule):
    """MaskGIT's polynomial counts: after pass t of N, floor(n (1 − ((t+1)/N)^E)) positions are still masked.

    google-research/maskgit ``mask_schedule.py``, methods ``pow2`` and the like (E is the digits after
    ``pow``; ``uniform`` is E = 1). As for ``cosine``, every pass reveals at least one position.
    """

    id = "power"
    summary = "power=N[:E]: MaskGIT's pow counts over N passes; 1 − (share of passes)^E (2) stays masked"
    n: int = whole(1, "N", 8)
    exponent: int = whole(1, "E", 2, default=2)

    def passes(self, n_positions: int) -> IntArray:
        return _passes(_power(n_positions, self.n, self.exponent))

    def planned_passes(self, n_positions: int) -> int:
        """Return N, by which MaskGIT's noise decreases, also if passes are left out."""
        return self.n


@dataclass(eq=False)
class Timesteps(Schedule):
    """Dream's counts: pass i of N reveals floor(|M| (1 − t_{i+1} / t_i)), t from 1 to EPS in even steps.

    Dream ``generation_utils.py`` (512 steps, eps 1e-3). The last pass reveals the rest. Without N the
    number of passes is the number of positions; the first pass then reveals nothing (and is left out here),
    the last one two positions. The public code uses the mean of |M| over the batch; here every text has its
    own count. N counts the passes of a block.
    """

    id = "dream"
    summary = "dream[=N[:EPS]]: Dream's timesteps from 1 to EPS (0.001) in N passes (one per position)"
    EPS = 0.001
    n: int | None = whole(1, "N", 32, default=None)
    eps: float = real(0.0, 1.0, "EPS", EPS, default=EPS)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        rule = super().parse(values)
        if rule.eps == 1:
            raise UserInputError("'dream=N:1': time must decrease, so EPS must be below 1")
        return rule

    def passes(self, n_positions: int) -> IntArray:
        return _passes(_timesteps(n_positions, self.n or n_positions, plain(self.eps)))


def _passes(counts: tuple[int, ...]) -> IntArray:
    """Return the pass of every step of a path from the counts per pass, without empty passes."""
    kept = np.array([count for count in counts if count], np.int64)
    return np.repeat(np.arange(len(kept)), kept)


@lru_cache(maxsize=256)
def _even(n: int, steps: int) -> tuple[int, ...]:
    base, more = divmod(n, steps)
    return tuple(base + (t < more) for t in range(min(steps, n)))


@lru_cache(maxsize=256)
def _cosine(n: int, steps: int) -> tuple[int, ...]:
    # cos(π t / 2N) is rational only at t/N = 0, 2/3 and 1 (Niven), so elsewhere the floor is safe.
    return _maskgit(
        n,
        [n // 2 if 3 * t == 2 * steps else floor(n * cos(pi * t / (2 * steps))) for t in range(1, steps + 1)],
    )


@lru_cache(maxsize=256)
def _power(n: int, steps: int, exponent: int) -> tuple[int, ...]:
    whole_N = steps**exponent
    return _maskgit(n, [n * (whole_N - t**exponent) // whole_N for t in range(1, steps + 1)])


def _maskgit(n: int, planned: Sequence[int]) -> tuple[int, ...]:
    """Return the counts per pass that leave the planned numbers masked, at least one position each."""
    counts, left = [], n
    for t, exact in enumerate(planned, start=1):
        after = max(1, min(left - 1, exact)) if t < len(planned) else 0
        counts.append(left - after)
        left = after
    return tuple(counts)


@lru_cache(maxsize=256)
def _timesteps(n: int, steps: int, eps: str) -> tuple[int, ...]:
    counts, left, fall = [], n, 1 - Fraction(eps)
    for i in range(steps):
        count = floor(left * fall / (steps - i * fall)) if i < steps - 1 else left
        counts.append(count)
        left -= count
    return tuple(counts)


@dataclass(eq=False)
class Ancestral(Commit):
    """Every masked position is revealed with probability (t − s)/t in each of N steps from t = 1 to 0.

    MDLM's ancestral sampler (kuleshov-group/mdlm ``diffusion.py``; 128 steps) and Dream's alg ``origin``.
    With even steps this is one step per position, drawn uniformly and independently when the block begins.
    Steps that reveal nothing are left out, as in MDLM's ``ddpm_cache``. The order only ranks the positions of
    a set. The seed follows the order: ``random:3+ancestral=128`` and ``max-prob:3+ancestral=128`` have seed
    3. N counts the steps of a block. The public final step takes the most probable tokens; here it draws.
    """

    id = "ancestral"
    summary = "ancestral=N: every position at one of N steps, drawn uniformly and independently (MDLM)"
    randomised = True
    n: int = whole(1, "N", 128)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        step_R = view.memory.rows("step", -1)
        if (step_R < 0).any():
            step_R = np.where(step_R < 0, (view.uniforms_R * self.n).astype(np.int64), step_R)
        view.memory.keep_rows("step", step_R)
        chosen: BoolArray = step_R == view.least_C(step_R)[view.chain_R]
        return chosen


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

    @property
    def files(self) -> Mapping[str, str]:
        return {self.file: numbers_digest(self.losses)}

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
        raise UserInputError(
            f"{where} cannot be read ({error.strerror or one_line(error)}); write one with "
            "'orderlens analyze RUN --table losses --format json --out FILE'"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserInputError(
            f"{where} is not the JSON of the table losses; write it with "
            "'orderlens analyze RUN --table losses --format json --out FILE'"
        ) from error
    if len(orders) != 1 or sorted(values) != list(range(len(values))):
        raise UserInputError(
            f"{where} holds {', '.join(sorted(orders)) or 'no order'}; it must hold one order and every "
            "number of revealed positions from 0 on; write it from a run of one order, such as random"
        )
    return tuple(values[place] for place in range(len(values)))


def _rows(found: Any) -> list[Any]:
    """Return the rows of the table, alone or in the list of tables that ``analyze`` writes."""
    tables = found if isinstance(found, list) else found.get("tables", [found])
    (own,) = [item for item in tables if item["table"] == "losses"]
    rows: list[Any] = own["rows"]
    return rows
