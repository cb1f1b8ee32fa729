"""What tokens committed in one pass know of each other: sets of a scored batch, revealed again one by one.

For a set S that a pass committed with R revealed before, the coupling is

    C = log p(x_S | R) − Σ_{i in S} log p(x_i | R),

what the sampler loses (C > 0) by drawing the set as if its tokens were independent. The chain rule gives
log p(x_S | R) along any path through S; a model whose conditionals fit one joint gives the same along all of
them, a trained one does not, so that several paths are measured. A model that knows its joint says C exactly
as well. The arithmetic on the rows is in ``orderlens.metrics.passes``.

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
from orderlens.decode.batches import BatchLimit, run_within
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
"""Ways of revealing a set one by one: as in its trace, backwards, and drawn ones (fewer for two tokens)."""
STATES_AT_ONCE = 4096
"""States evaluated in one call."""


@dataclass(frozen=True, slots=True)
class _Set:
    """A set of a trace: rows ``low`` to ``high`` of the columns; ``first`` is the first row of its block."""

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
class _Route:
    """One path through a set: places into it, in the order of revealing."""

    of: _Set
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
        columns: what ``score_batch`` returned for them.
        n_sets: sets per (sample, policy), drawn without repetition; all where there are no more.
        seed: of the choice of sets and paths.
        anchor: as when scoring.
        limit: how many samples are evaluated together; made smaller when memory runs out.
    """
    canvases = plan_canvases(model.block_size, samples, anchor or model.anchor)
    routes: dict[int, list[_Route]] = {}
    for found in _drawn_sets(samples, orders, columns, n_sets, seed):
        key = (samples[found.sample].id, orders[found.order].spec, int(columns["forward"][found.low]))
        routes.setdefault(found.sample, []).extend(_routes(found, keyed_generator(seed, *key, "paths")))
    rows: dict[int, list[dict[str, Any]]] = {}

    def work(members: Sequence[int]) -> None:
        states = TargetStates(model, [samples[s] for s in members], [canvases[s] for s in members])
        for place, s in enumerate(members):
            bench = _Bench(model, states, place, samples[s], columns)
            rows[s] = [_key(samples[s], orders[route.of.order]) | row for route, row in bench.rows(routes[s])]

    for members in equal_windows(model, canvases):
        wanted = [s for s in members if s in routes]
        run_within(limit or BatchLimit(), model, wanted, work, lambda s: f"sample '{samples[s].id}'")
    found_rows = [row for s in sorted(rows) for row in rows[s]]
    return pa.Table.from_pylist(found_rows, schema=table_schema("couplings"))


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
    """Return the first row of every run in which the named columns are constant."""
    change = np.ones(len(columns[names[0]]), bool)
    change[1:] = np.any([columns[name][1:] != columns[name][:-1] for name in names], axis=0)
    return np.flatnonzero(change)


def _routes(found: _Set, generator: np.random.Generator) -> list[_Route]:
    """Return different paths through a set: as in its trace, backwards, and drawn ones."""
    forwards = np.arange(found.size)
    paths = [forwards, forwards[::-1]]
    while len(paths) < min(PATHS, math.factorial(found.size)):
        path = generator.permutation(found.size)
        if not any(np.array_equal(path, known) for known in paths):
            paths.append(path)
    return [_Route(found, number, path) for number, path in enumerate(paths)]


class _Bench:
    """One sample's states, among those of its batch."""

    def __init__(
        self, model: Model, states: TargetStates, slot: int, sample: EncodedSample, columns: Columns
    ) -> None:
        self.model, self.states, self.columns = model, states, columns
        self.first = int(np.searchsorted(states.blocks.sample_M, slot))
        self.text = np.concatenate([sample.prompt, sample.target, sample.suffix])

    def rows(self, routes: Sequence[_Route]) -> Iterator[tuple[_Route, dict[str, Any]]]:
        """Yield each path with its row of the table, key columns left out."""
        logp = self._one_by_one(routes)
        exact: dict[int, float | None] = {}
        for route, later in zip(routes, logp, strict=True):
            found = route.of
            inside = found.low + route.places
            logq = np.asarray(self.columns["logq"][inside], np.float64)
            sequential = np.append(logq[:1], later)
            if found.low not in exact:
                exact[found.low] = self._exactly(found)
            yield (
                route,
                {
                    "block": int(self.columns["block"][found.low]),
                    "forward": int(self.columns["forward"][found.low]),
                    "size": found.size,
                    "n_sets": found.n_sets,
                    "path": route.number,
                    "positions": self.columns["position"][inside].tolist(),
                    "logq": logq.tolist(),
                    "sequential": sequential.tolist(),
                    "coupling": coupling(sequential, logq),
                    "joint_coupling": exact[found.low],
                    "entropy_bound": entropy_bound(self.columns["entropy"][inside]),
                },
            )

    def _one_by_one(self, routes: Sequence[_Route]) -> list[FloatArray]:
        """Return log p of every token of a path after its first, given R and those before it.

        The first token's is the log q of the pass itself.
        """
        shown, wanted, blocks = [], [], []
        for route in routes:
            visible_B, offsets = self._before(route.of), self._offsets(route)
            for before, this in pairwise(offsets):
                visible_B = visible_B.copy()
                visible_B[before] = True
                shown.append(visible_B)
                wanted.append(this)
                blocks.append(self._block(route.of))
        logp = self._evaluate(np.array(blocks), np.array(shown), np.array(wanted))
        return np.split(logp, np.cumsum([route.of.size - 1 for route in routes])[:-1])

    def _evaluate(self, m_U: IntArray, visible_UB: Any, wanted_U: IntArray) -> FloatArray:
        """Return log p of the true token at one offset of every state [U]; equal states run once."""
        first_D, state_U = distinct_states(m_U, visible_UB)
        wanted_DB = np.zeros((len(first_D), visible_UB.shape[1]), bool)
        wanted_DB[state_U, wanted_U] = True
        logp_DB = np.full(wanted_DB.shape, np.nan)
        for low in range(0, len(first_D), STATES_AT_ONCE):
            part = slice(low, low + STATES_AT_ONCE)
            at = first_D[part]
            row_DB, stats = self.states.evaluate(m_U[at], visible_UB[at], wanted_DB[part])
            logp_DB[part][wanted_DB[part]] = stats.target_logprob[row_DB[wanted_DB[part]]]
        return np.asarray(np.minimum(logp_DB[state_U, wanted_U], 0.0))

    def _exactly(self, found: _Set) -> float | None:
        """Return the set's coupling from the model's joint, None where it has none."""
        model, blocks, m = self.model, self.states.blocks, self._block(found)
        if not (isinstance(model, HasJoint) and model.is_coherent):
            return None
        before_B = self._before(found)
        after_B = before_B.copy()
        after_B[self.columns["position"][found.low : found.high] - blocks.start_M[m]] = True
        given = self.text[: blocks.low_M[m]]
        before, after = (
            model.marginal_log_prob(np.append(given, self.states.window(m, shown)).tolist())
            for shown in (before_B, after_B)
        )
        return float(after - before - np.sum(self.columns["logq"][found.low : found.high]))

    def _block(self, found: _Set) -> int:
        return self.first + int(self.columns["block"][found.low])

    def _offsets(self, route: _Route) -> IntArray:
        rows = route.of.low + route.places
        return np.asarray(self.columns["position"][rows] - self.states.blocks.start_M[self._block(route.of)])

    def _before(self, found: _Set) -> Any:
        """Return what the block shows before the pass [B]."""
        m = self._block(found)
        visible_B = self.states.blocks.given_MB[m].copy()
        revealed = self.columns["position"][found.first : found.low]
        visible_B[revealed - self.states.blocks.start_M[m]] = True
        return visible_B


def _key(sample: EncodedSample, order: Policy) -> dict[str, Any]:
    return {"sample_id": sample.id, "task": sample.task, "order": order.label, "seed": order.seed}
