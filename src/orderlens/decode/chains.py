"""The chains of one generation: every (prompt, policy) pair as a row of parallel arrays.

``Chains`` holds the only state of a chain. A batch works on some of the rows and writes back after every
pass. A batch that runs out of memory can therefore be split and resumed from the last completed pass.

``live_canvases`` returns the texts during decoding, for a progress display.

Shape letters: N chains, B block size, L longest canvas. Does not depend on model internals, files or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from orderlens.common.grid import Canvas
from orderlens.common.rng import NumberRows, draw_stream, rule_stream
from orderlens.decode.extra_inputs import PolicyMemory
from orderlens.models.protocol import IntArray, Model
from orderlens.rules.orders import StaticOrder, check_path
from orderlens.rules.policy import Policy
from orderlens.texts.samples import EncodedSample

NEVER = np.iinfo(np.int64).max
"""The pass number of a position that is not revealed yet."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One finished chain.

    Attributes:
        sample: index of its sample.
        order: index of its policy.
        canvas: its block grid.
        tokens: the canvas's tokens, mask id where nothing was decoded.
        steps: number of revealed tokens.
        stop: end position of the last decoded block (exclusive).
        finish_reason: ``"eos"`` or ``"length"``.
        n_passes: number of passes under a policy that revises, including those without a change. None under
            other policies: the reveals contain it.
    """

    sample: int
    order: int
    canvas: Canvas
    tokens: IntArray
    steps: int
    stop: int
    finish_reason: str | None
    n_passes: int | None = None


class Chains:
    """All chains of a call.

    Attributes:
        policy_N, sample_N: indices.
        tokens_NL: canvases, mask id at masked positions.
        start_N: first position of the current block.
        block_N: block number, from 0.
        step_N: tokens revealed so far, including tokens masked again later.
        filled_N: number of filled positions.
        reported_N: the largest ``filled_N`` so far, which progress has reported.
        forward_N: passes so far.
        pass_N: passes in the current block.
        full_passes_N: of these, passes that started with no masked position in the block.
        filling_N: number of positions to fill in the current block.
        unchanged_N: whether the last pass changed nothing.
        open_NB: masked positions of the current block that are to be filled.
        filled_NB: positions of the current block that decoding has filled (not given ones).
        place_NB: place of each position in a static order's path.
        rank_NB: pass at which a static policy reveals each position.
        logq_NB: log q of the token at each filled position, for policies that revise.
    """

    def __init__(
        self,
        model: Model,
        samples: Sequence[EncodedSample],
        policies: Sequence[Policy],
        canvases: Sequence[Canvas],
        sample_seed: int,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Create the chains; ``keys`` name each policy's random numbers, by default its spec."""
        self.keys = keys or [policy.spec for policy in policies]
        self.samples, self.policies, self.block_size, self.mask_id = (
            samples,
            policies,
            model.block_size,
            model.mask_id,
        )
        self.attention, self._eos = model.attention, np.array(sorted(model.eos_ids), np.int64)
        self.sample_N = np.repeat(np.arange(len(samples)), len(policies))
        self.policy_N = np.tile(np.arange(len(policies)), len(samples))
        self.canvases = [canvases[s] for s in self.sample_N.tolist()]
        count = len(self.sample_N)
        self.tokens_NL = np.full((count, max(max(c.end, c.total) for c in canvases)), model.mask_id)
        for n, s in enumerate(self.sample_N.tolist()):
            self.tokens_NL[n, : canvases[s].total] = initial_canvas(samples[s], canvases[s], model.mask_id)
        self.filled_N, self.reported_N = np.zeros(count, np.int64), np.zeros(count, np.int64)
        names = "start_N", "block_N", "step_N", "forward_N", "pass_N", "full_passes_N", "filling_N"
        (
            self.start_N,
            self.block_N,
            self.step_N,
            self.forward_N,
            self.pass_N,
            self.full_passes_N,
            self.filling_N,
        ) = (np.zeros(count, np.int64) for _ in names)
        self.requested_end_N = np.array([canvas.requested_end for canvas in self.canvases])
        self.unchanged_N = np.zeros(count, bool)
        self.open_NB = np.zeros((count, self.block_size), bool)
        self.filled_NB = np.zeros((count, self.block_size), bool)
        self.place_NB = np.zeros((count, self.block_size), np.int64)
        self.rank_NB = np.full((count, self.block_size), NEVER)
        self.logq_NB = np.zeros((count, self.block_size))
        self.reason: list[str | None] = [None] * count
        self.memory = [PolicyMemory.empty(count, self.block_size) for _ in policies]
        self.draws = NumberRows(count, self.block_size, lambda n: draw_stream(sample_seed, *self._key(n)))
        self.numbers = NumberRows(
            count, self.block_size, lambda n: rule_stream(self.policies[self.policy_N[n]].seed, *self._key(n))
        )
        for n in range(count):
            self._enter_block(n, 0)

    def _key(self, n: int) -> tuple[str, str, int]:
        return self.samples[self.sample_N[n]].id, self.keys[self.policy_N[n]], int(self.block_N[n])

    def width(self, n: int) -> int:
        """Return the width of the chain's windows."""
        low, high = self.canvases[n].window(0, self.attention)
        return int(high - low)

    def check_paths(self) -> None:
        """Reject a static order with an invalid path in any block, before decoding starts.

        Paths of built-in orders are checked only when a block is entered: computing them twice would delay
        the device by 0.1 ms per chain.
        """
        is_plugin = [not type(policy.order).__module__.startswith("orderlens.") for policy in self.policies]
        for n, canvas in enumerate(self.canvases):
            order, sample = self.policies[self.policy_N[n]].order, self.samples[self.sample_N[n]]
            if is_plugin[self.policy_N[n]] and isinstance(order, StaticOrder):
                for block, start in enumerate(canvas.block_starts):
                    check_path(order, int(self._to_fill(n, start).sum()), sample.id, block)

    def _to_fill(self, n: int, start: int) -> NDArray[np.bool_]:
        """Return which positions [B] of the block at ``start`` are to be filled."""
        stop = min(start + self.block_size, self.canvases[n].fill_end)
        open_B = np.zeros(self.block_size, bool)
        open_B[: stop - start] = self.tokens_NL[n, start:stop] == self.mask_id
        return open_B

    def _enter_block(self, n: int, block: int) -> None:
        policy = self.policies[self.policy_N[n]]
        start = self.canvases[n].block_starts[block]
        open_B = self._to_fill(n, start)
        self.start_N[n], self.block_N[n], self.filling_N[n] = start, block, open_B.sum()
        self.pass_N[n] = self.full_passes_N[n] = 0
        self.unchanged_N[n] = False
        self.open_NB[n], self.filled_NB[n], self.rank_NB[n] = open_B, False, NEVER
        self.memory[self.policy_N[n]].forget(np.array([n]))
        self.draws.enter_block(n)
        self.numbers.enter_block(n)
        if isinstance(policy.order, StaticOrder) and self.filling_N[n]:
            places = np.flatnonzero(open_B)
            path, passes = policy.planned(len(places), self.samples[self.sample_N[n]].id, block)
            self.place_NB[n, places[path]] = np.arange(len(path))
            if policy.is_static:
                self.rank_NB[n, places[path]] = passes

    def done_with_block(self, chain_C: IntArray) -> NDArray[np.bool_]:
        """Return which chains have finished their block."""
        full_C = np.asarray(~self.open_NB[chain_C].any(axis=1))
        for c in np.flatnonzero(full_C):
            full_C[c] = self._has_settled(int(chain_C[c]))
        return full_C

    def _has_settled(self, n: int) -> bool:
        """Return whether the chain's policy makes no further change in its full block."""
        policy: Policy = self.policies[self.policy_N[n]]
        rule, filling = policy.revise, int(self.filling_N[n])
        if rule is None or not filling:
            return True
        if int(self.pass_N[n]) >= rule.passes(filling):
            return True
        return rule.is_done(int(self.full_passes_N[n]), not bool(self.unchanged_N[n]))

    def ending(self, n: int, stop_at_eos: bool) -> str | None:
        """Return why the chain ends with its current block, or None if another block follows."""
        canvas, start = self.canvases[n], int(self.start_N[n])
        block = self.tokens_NL[n, start : start + self.block_size][self.filled_NB[n]]
        # With a suffix, the text after an EOS is given, so decoding continues to the end.
        if stop_at_eos and not canvas.n_suffix and np.isin(block, self._eos).any():
            return "eos"
        return "length" if start + self.block_size >= canvas.end else None

    def next_block(self, n: int) -> None:
        """Move the chain to its next block."""
        self._enter_block(n, int(self.block_N[n]) + 1)

    def adopt(self, target: IntArray, source: IntArray) -> None:
        """Give chains the text and counts of other chains of the same sample that ended the same block."""
        counts = self.step_N, self.forward_N, self.filled_N, self.reported_N, self.start_N, self.block_N
        for values in (self.tokens_NL, *counts):
            values[target] = values[source]
        reasons = [self.reason[n] for n in source]
        for n, reason in zip(target, reasons, strict=True):
            self.reason[n] = reason

    def finished(self) -> list[Chain]:
        """Return every finished chain."""
        return [
            Chain(
                int(self.sample_N[n]),
                int(self.policy_N[n]),
                canvas,
                self.tokens_NL[n, : max(canvas.end, canvas.total)],
                int(self.step_N[n]),
                int(self.start_N[n]) + self.block_size,
                self.reason[n],
                int(self.forward_N[n]) if self.policies[self.policy_N[n]].revise is not None else None,
            )
            for n, canvas in enumerate(self.canvases)
        ]


def initial_canvas(sample: EncodedSample, canvas: Canvas, mask_id: int) -> IntArray:
    """Return the canvas [total] before decoding: the given tokens, masks elsewhere."""
    tokens = np.full(canvas.total, mask_id)
    tokens[: canvas.prompt_length] = sample.prompt
    tokens[canvas.prompt_length : canvas.prompt_length + len(sample.template)] = sample.template
    if canvas.n_suffix:
        tokens[canvas.requested_end :] = sample.suffix
    return tokens


@dataclass(frozen=True, slots=True)
class LiveCanvas:
    """The current state of one text.

    Attributes:
        sample_id: its sample.
        order: spec of its policy.
        forward: passes so far.
        tokens: ids [L] of the positions to fill, from left to right.
        masked: which of them [L] are still masked.
    """

    sample_id: str
    order: str
    forward: int
    tokens: NDArray[np.int64]
    masked: NDArray[np.bool_]


Watch: TypeAlias = Callable[[Sequence[LiveCanvas]], None]
"""A callback that receives the texts of one sample, one per policy, after each progress."""


def live_canvases(chains: Chains) -> list[LiveCanvas]:
    """Return the texts of the first unfinished sample, or of the last sample if all are finished."""
    unfinished = [n for n, reason in enumerate(chains.reason) if reason is None]
    sample = chains.sample_N[unfinished[0] if unfinished else -1]
    return [_canvas(chains, int(n)) for n in np.flatnonzero(chains.sample_N == sample)]


def _canvas(chains: Chains, n: int) -> LiveCanvas:
    canvas = chains.canvases[n]
    tokens = chains.tokens_NL[n, canvas.prompt_length : canvas.requested_end].copy()
    return LiveCanvas(
        chains.samples[chains.sample_N[n]].id,
        chains.policies[chains.policy_N[n]].spec,
        int(chains.forward_N[n]),
        tokens,
        tokens == chains.mask_id,
    )
