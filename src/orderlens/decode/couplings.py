"""Dependence between the tokens committed in one pass: sets of a scored batch, re-scored token by token.

For a set S that a pass committed with R revealed before, the coupling is

    C = log p(x_S | R) − Σ_{i in S} log p(x_i | R),

the loss of the sampler (C > 0) from drawing the tokens of the set as if they were independent. The chain rule
gives log p(x_S | R) along any path through S. If the model's conditionals come from one joint distribution,
all paths agree. For trained models they do not, so several paths are measured. For a model with a known joint
distribution, C is also computed exactly. The arithmetic is in ``orderlens.metrics.passes``.

Shape letters: U states, B block size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.common.rng import keyed_generator
from orderlens.decode.batches import BatchLimit, run_in_batches
from orderlens.decode.passes import Columns
from orderlens.decode.score import distinct_states, equal_windows
from orderlens.decode.target_states import TargetStates, plan_canvases
from orderlens.metrics.passes import coupling, entropy_bound
from orderlens.models.abilities import HasJoint
from orderlens.models.protocol import Anchor, FloatArray, IntArray, Model
from orderlens.rules.policy import Policy
from orderlens.store.schema import table_schema
from orderlens.texts.samples import EncodedSample

PATHS = 4
"""Paths per set: in the trace's order, in reverse, and random ones (fewer for two tokens)."""
STATES_PER_CALL = 4096
"""States evaluated in one call."""


@dataclass(frozen=True, slots=True)
class _Set:
    """A set of a trace: rows ``low`` to ``high`` of the columns.

    ``first`` is the first row of its block, ``n_sets`` the number of sets in the trace.
    """

    sample: int
    order: int
    first: int
    low: int
    high: int
    n_sets: int

    @property
    def size(self) -> int:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class _Path:
    """One path through a set: indices into the set, in reveal order."""

    token_set: _Set
    number: int
    places: IntArray


def coupling_table(
    model: Model,
    samples: Sequence[EncodedSample],
    orders: Sequence[Policy],
    columns: Columns,
    n_sets: int,
    *,
    seed: int = 0,
    anchor: Anchor | None = None,
    limit: BatchLimit | None = None,
) -> pa.Table:
    """Measure up to ``n_sets`` sets per sample and policy, each along up to ``PATHS`` paths.

    Args:
        model: the model that was scored.
        samples: the scored batch.
        orders: its policies.
        columns: the result of ``score_batch`` for them.
        n_sets: maximum number of sets per (sample, policy), drawn without replacement.
        seed: of the choice of sets and paths.
        anchor: as when scoring.
        limit: maximum number of samples per batch; reduced when memory runs out.
    """
    canvases = plan_canvases(model.block_size, samples, anchor or model.anchor)
    paths: dict[int, list[_Path]] = {}
    for token_set in _drawn_sets(samples, orders, columns, n_sets, seed):
        s, o, forward = token_set.sample, token_set.order, int(columns["forward"][token_set.low])
        generator = keyed_generator(seed, samples[s].id, orders[o].spec, forward, "paths")
        paths.setdefault(s, []).extend(_paths(token_set, generator))
    rows: dict[int, list[dict[str, Any]]] = {}

    def work(members: Sequence[int]) -> None:
        states = TargetStates(model, [samples[s] for s in members], [canvases[s] for s in members])
        for slot, s in enumerate(members):
            measured = _SampleCouplings(model, states, slot, samples[s], columns).rows(paths[s])
            rows[s] = [_key(samples[s], orders[path.token_set.order]) | row for path, row in measured]

    for members in equal_windows(model, canvases):
        wanted = [s for s in members if s in paths]
        run_in_batches(limit or BatchLimit(), model, wanted, work, lambda s: f"sample '{samples[s].id}'")
    all_rows = [row for s in sorted(rows) for row in rows[s]]
    return pa.Table.from_pylist(all_rows, schema=table_schema("couplings"))


def _drawn_sets(
    samples: Sequence[EncodedSample], orders: Sequence[Policy], columns: Columns, n: int, seed: int
) -> Iterator[_Set]:
    """Yield up to ``n`` sets of two or more tokens of every trace, in trace order."""
    trace_starts = _starts(columns, "sample", "order")
    block_starts = _starts(columns, "sample", "order", "block")
    pass_starts = _starts(columns, "sample", "order", "forward")
    ends = np.append(pass_starts[1:], len(columns["forward"]))
    for low, high in zip(trace_starts, np.append(trace_starts[1:], len(columns["forward"])), strict=True):
        inside = (pass_starts >= low) & (pass_starts < high) & (ends - pass_starts > 1)
        sets = np.flatnonzero(inside)
        s, o = int(columns["sample"][low]), int(columns["order"][low])
        generator = keyed_generator(seed, samples[s].id, orders[o].spec, "couplings")
        for at in sorted(generator.choice(sets, size=min(n, len(sets)), replace=False).tolist()):
            start, end = int(pass_starts[at]), int(ends[at])
            first = int(block_starts[np.searchsorted(block_starts, start, side="right") - 1])
            yield _Set(s, o, first, start, end, len(sets))


def _starts(columns: Columns, *names: str) -> IntArray:
    """Return the first row of every stretch of rows in which the named columns are constant."""
    change = np.ones(len(columns[names[0]]), bool)
    change[1:] = np.any([columns[name][1:] != columns[name][:-1] for name in names], axis=0)
    return np.flatnonzero(change)


def _paths(token_set: _Set, generator: np.random.Generator) -> list[_Path]:
    """Return distinct paths through a set: in the trace's order, in reverse, and random ones."""
    in_trace_order = np.arange(token_set.size)
    paths = [in_trace_order, in_trace_order[::-1]]
    while len(paths) < min(PATHS, math.factorial(token_set.size)):
        path = generator.permutation(token_set.size)
        if not any(np.array_equal(path, known) for known in paths):
            paths.append(path)
    return [_Path(token_set, number, path) for number, path in enumerate(paths)]


class _SampleCouplings:
    """Measures the sets of one sample, with the states of its batch."""

    def __init__(
        self, model: Model, states: TargetStates, slot: int, sample: EncodedSample, columns: Columns
    ) -> None:
        self.model, self.states, self.columns = model, states, columns
        self.first = int(np.searchsorted(states.blocks.sample_M, slot))
        self.text = np.concatenate([sample.prompt, sample.target, sample.suffix])

    def rows(self, paths: Sequence[_Path]) -> Iterator[tuple[_Path, dict[str, Any]]]:
        """Yield each path with its row of the table, without the key columns."""
        logp = self._sequential_logprobs(paths)
        exact: dict[int, float | None] = {}
        for path, after_first in zip(paths, logp, strict=True):
            token_set = path.token_set
            inside = token_set.low + path.places
            logq = np.asarray(self.columns["logq"][inside], np.float64)
            sequential = np.append(logq[:1], after_first)
            if token_set.low not in exact:
                exact[token_set.low] = self._joint_coupling(token_set)
            yield (
                path,
                {
                    "block": int(self.columns["block"][token_set.low]),
                    "forward": int(self.columns["forward"][token_set.low]),
                    "size": token_set.size,
                    "n_sets": token_set.n_sets,
                    "path": path.number,
                    "positions": self.columns["position"][inside].tolist(),
                    "logq": logq.tolist(),
                    "sequential": sequential.tolist(),
                    "coupling": coupling(sequential, logq),
                    "joint_coupling": exact[token_set.low],
                    "entropy_bound": entropy_bound(self.columns["entropy"][inside]),
                },
            )

    def _sequential_logprobs(self, paths: Sequence[_Path]) -> list[FloatArray]:
        """Return log p of every token of a path after the first, given R and the path's earlier tokens.

        The first token needs no evaluation: its log p is the log q of the pass.
        """
        shown, wanted, blocks = [], [], []
        for path in paths:
            visible_B, offsets = self._visible_before(path.token_set), self._offsets(path)
            for previous, current in pairwise(offsets):
                visible_B = visible_B.copy()
                visible_B[previous] = True
                shown.append(visible_B)
                wanted.append(current)
                blocks.append(self._block(path.token_set))
        logp = self._evaluate(np.array(blocks), np.array(shown), np.array(wanted))
        return np.split(logp, np.cumsum([path.token_set.size - 1 for path in paths])[:-1])

    def _evaluate(self, m_U: IntArray, visible_UB: Any, wanted_U: IntArray) -> FloatArray:
        """Return log p of the true token at one offset of each state [U]; equal states are evaluated once."""
        first_D, state_U = distinct_states(m_U, visible_UB)
        wanted_DB = np.zeros((len(first_D), visible_UB.shape[1]), bool)
        wanted_DB[state_U, wanted_U] = True
        logp_DB = np.full(wanted_DB.shape, np.nan)
        for low in range(0, len(first_D), STATES_PER_CALL):
            part = slice(low, low + STATES_PER_CALL)
            at = first_D[part]
            row_DB, stats = self.states.evaluate(m_U[at], visible_UB[at], wanted_DB[part])
            logp_DB[part][wanted_DB[part]] = stats.target_logprob[row_DB[wanted_DB[part]]]
        return np.asarray(np.minimum(logp_DB[state_U, wanted_U], 0.0))

    def _joint_coupling(self, token_set: _Set) -> float | None:
        """Return the set's coupling from the model's joint distribution; None for a model without one."""
        model, blocks, m = self.model, self.states.blocks, self._block(token_set)
        if not (isinstance(model, HasJoint) and model.is_coherent):
            return None
        rows = slice(token_set.low, token_set.high)
        before_B = self._visible_before(token_set)
        after_B = before_B.copy()
        after_B[self.columns["position"][rows] - blocks.start_M[m]] = True
        prefix = self.text[: blocks.low_M[m]]
        before, after = (
            model.marginal_log_prob(np.append(prefix, self.states.window(m, shown)).tolist())
            for shown in (before_B, after_B)
        )
        return float(after - before - np.sum(self.columns["logq"][rows]))

    def _block(self, token_set: _Set) -> int:
        return self.first + int(self.columns["block"][token_set.low])

    def _offsets(self, path: _Path) -> IntArray:
        start = self.states.blocks.start_M[self._block(path.token_set)]
        return np.asarray(self.columns["position"][path.token_set.low + path.places] - start)

    def _visible_before(self, token_set: _Set) -> Any:
        """Return which positions of the block [B] are visible before the pass."""
        m = self._block(token_set)
        visible_B = self.states.blocks.given_MB[m].copy()
        revealed = self.columns["position"][token_set.first : token_set.low]
        visible_B[revealed - self.states.blocks.start_M[m]] = True
        return visible_B


def _key(sample: EncodedSample, order: Policy) -> dict[str, Any]:
    return {"sample_id": sample.id, "task": sample.task, "order": order.label, "seed": order.seed}
