"""The chains of one generation: every (prompt, policy) pair as a row of parallel arrays.

This is the truth about each chain. A batch works on some of its rows and writes back after every pass, so a
batch that fails for lack of memory can be cut and taken up again where each chain stood.

``live_canvases`` shows the texts while they fill, to somebody who watches.

Shape letters: N chains, B block size, L longest canvas. Knows nothing of models' insides, files or text.
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
from orderlens.rules.orders.protocol import StaticOrder, check_path
from orderlens.rules.policy import Policy
from orderlens.texts.samples import EncodedSample

NEVER = np.iinfo(np.int64).max
"""Pass of a position that is not revealed (yet)."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One finished chain.

    Attributes:
        sample: index of its sample.
        order: index of its policy.
        canvas: its block grid.
        tokens: the canvas's tokens, mask id where nothing was decoded.
        steps: tokens revealed.
        stop: one past the last decoded block.
        finish_reason: ``"eos"`` or ``"length"``.
        n_passes: passes it took where its policy revises, those that changed nothing included; else None,
            because its reveals tell.
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
        tokens_NL: canvases, mask id where nothing is decided.
        start_N: first position of the current block.
        block_N: its number, 0 for the first one.
        step_N: tokens revealed so far, those taken back again included.
        filled_N: positions filled now.
        told_N: the most that were filled at any time: how far the text is.
        forward_N: passes made so far.
        pass_N: passes made in the current block.
        post_N: of these, passes that began without a mask.
        filling_N: positions that the current block had to fill.
        settled_N: the last pass changed nothing.
        open_NB: masked positions of the current block that are to be filled.
        held_NB: positions of the current block that were filled, not given.
        place_NB: place of each position in a static order's path.
        rank_NB: pass at which a static policy reveals each position.
        logq_NB: log q of each held token, for policies that revise.
    """

    def __init__(
        self,
        model: Model,
        samples: Sequence[EncodedSample],
        policies: Sequence[Policy],
        canvases: Sequence[Canvas],
        sample_seed: int,
    ) -> None:
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
            self.tokens_NL[n, : canvases[s].total] = given_tokens(samples[s], canvases[s], model.mask_id)
        self.filled_N, self.told_N = np.zeros(count, np.int64), np.zeros(count, np.int64)
        names = "start_N", "block_N", "step_N", "forward_N", "pass_N", "post_N", "filling_N"
        self.start_N, self.block_N, self.step_N, self.forward_N, self.pass_N, self.post_N, self.filling_N = (
            np.zeros(count, np.int64) for _ in names
        )
        self.requested_end_N = np.array([canvas.requested_end for canvas in self.canvases])
        self.settled_N = np.zeros(count, bool)
        self.open_NB = np.zeros((count, self.block_size), bool)
        self.held_NB = np.zeros((count, self.block_size), bool)
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
        return self.samples[self.sample_N[n]].id, self.policies[self.policy_N[n]].spec, int(self.block_N[n])

    def width(self, n: int) -> int:
        """Return the width of the chain's windows."""
        low, high = self.canvases[n].window(0, self.attention)
        return int(high - low)

    def check_paths(self) -> None:
        """Refuse a static order with a wrong path in any block before the first one is decoded.

        Built-in orders are left to the check when a block is entered: making all their paths twice takes a
        tenth of a millisecond per chain, in which the device waits.
        """
        foreign = [not type(policy.order).__module__.startswith("orderlens.") for policy in self.policies]
        for n, canvas in enumerate(self.canvases):
            order, sample = self.policies[self.policy_N[n]].order, self.samples[self.sample_N[n]]
            if foreign[self.policy_N[n]] and isinstance(order, StaticOrder):
                for block, start in enumerate(canvas.block_starts):
                    check_path(order, int(self._open(n, start).sum()), sample.id, block)

    def _open(self, n: int, start: int) -> NDArray[np.bool_]:
        """Return which positions [B] of the block at ``start`` are to be filled."""
        stop = min(start + self.block_size, self.canvases[n].fill_end)
        open_B = np.zeros(self.block_size, bool)
        open_B[: stop - start] = self.tokens_NL[n, start:stop] == self.mask_id
        return open_B

    def _enter_block(self, n: int, block: int) -> None:
        policy = self.policies[self.policy_N[n]]
        start = self.canvases[n].block_starts[block]
        open_B = self._open(n, start)
        self.start_N[n], self.block_N[n], self.filling_N[n] = start, block, open_B.sum()
        self.pass_N[n] = self.post_N[n] = 0
        self.settled_N[n] = False
        self.open_NB[n], self.held_NB[n], self.rank_NB[n] = open_B, False, NEVER
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
        """Return which chains have nothing left to do in their block."""
        full_C = np.asarray(~self.open_NB[chain_C].any(axis=1))
        for c in np.flatnonzero(full_C):
            full_C[c] = self._has_settled(int(chain_C[c]))
        return full_C

    def _has_settled(self, n: int) -> bool:
        """Return whether the chain's policy will change nothing more in its full block."""
        policy: Policy = self.policies[self.policy_N[n]]
        rule, filling = policy.revise, int(self.filling_N[n])
        if rule is None or not filling:
            return True
        if int(self.pass_N[n]) >= rule.passes(filling):
            return True
        return rule.is_done(int(self.post_N[n]), not bool(self.settled_N[n]))

    def ending(self, n: int, stop_at_eos: bool) -> str | None:
        """Return why the chain ends with its current block, or None where another one follows."""
        canvas, start = self.canvases[n], int(self.start_N[n])
        block = self.tokens_NL[n, start : start + self.block_size][self.held_NB[n]]
        # A text with a given ending is filled to its end: what follows an EOS in it is not ours to drop.
        if stop_at_eos and not canvas.n_suffix and np.isin(block, self._eos).any():
            return "eos"
        return "length" if start + self.block_size >= canvas.end else None

    def next_block(self, n: int) -> None:
        """Move the chain to its next block."""
        self._enter_block(n, int(self.block_N[n]) + 1)

    def finished(self) -> list[Chain]:
        """Return every chain as it ended."""
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


def given_tokens(sample: EncodedSample, canvas: Canvas, mask_id: int) -> IntArray:
    """Return the canvas [total] before anything is decoded: what is given, masks elsewhere."""
    tokens = np.full(canvas.total, mask_id)
    tokens[: canvas.prompt_length] = sample.prompt
    tokens[canvas.prompt_length : canvas.prompt_length + len(sample.template)] = sample.template
    if canvas.n_suffix:
        tokens[canvas.requested_end :] = sample.suffix
    return tokens


@dataclass(frozen=True, slots=True)
class LiveCanvas:
    """One text as it stands.

    Attributes:
        sample_id: its sample.
        order: spec of its policy.
        forward: passes made so far.
        tokens: ids [L] of the positions to fill, from left to right.
        masked: which of them [L] are still masked.
    """

    sample_id: str
    order: str
    forward: int
    tokens: NDArray[np.int64]
    masked: NDArray[np.bool_]


Watch: TypeAlias = Callable[[Sequence[LiveCanvas]], None]
"""Is shown the texts of one sample, one per policy, whenever they got further."""


def live_canvases(chains: Chains) -> list[LiveCanvas]:
    """Return the texts of the first sample that is not finished, of the last one where all are."""
    left = [n for n, reason in enumerate(chains.reason) if reason is None]
    sample = chains.sample_N[left[0] if left else -1]
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
