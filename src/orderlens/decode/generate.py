"""The generator: many (prompt, order) chains in one batch, each at its own pace, one token per step.

Every chain owns a session slot. Each round evaluates one state per unfinished chain, lets its order choose
a position, commits one token there, and records it. A chain whose block is full either ends (EOS in the
block, or canvas full) or has the block's keys cached and moves on. Finished chains leave the batch.

The canvas is rounded up to whole blocks, because the conditionals depend on how many masks are visible;
tokens past the requested length are recorded with ``is_overflow``.

Shape letters: C chains, W window, R rows. Knows nothing of files, text or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.batches import BatchLimit, run_within
from orderlens.decode.columns import Columns
from orderlens.decode.head import draw_stats, position_stats, take_rows
from orderlens.decode.reference import block_uniforms
from orderlens.decode.score import check_fits
from orderlens.decode.select import choose
from orderlens.errors import UserInputError
from orderlens.grid import Canvas
from orderlens.models.protocol import Anchor, IntArray, Model, Rows, StateBatch
from orderlens.orders.paths import check_path
from orderlens.orders.protocol import ConfidenceOrder, DrawingOrder, OracleOrder, Order, StaticOrder
from orderlens.samples import EncodedSample
from orderlens.stats import DrawStats, PositionStats

MAX_NEW_TOKENS = 16384
MIN_TEMPERATURE = 1e-4
"""Smallest temperature above 0: float32 logits near 16 are known to 2e-6, small against it."""
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How to decode: length, temperature, stopping, grid."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    sample_seed: int = 0
    stop_at_eos: bool = True
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise UserInputError(
                f"max_new_tokens={self.max_new_tokens} must lie between 1 and {MAX_NEW_TOKENS}"
            )
        if not 0 <= self.temperature < np.inf:
            raise UserInputError(f"temperature={self.temperature} must be a finite number ≥ 0")
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise UserInputError(
                f"temperature={self.temperature} lies between 0 and {MIN_TEMPERATURE:g}, where "
                "rounding decides the draws; use 0 to decode greedily"
            )


@dataclass(slots=True)
class Chain:
    """One (prompt, order) pair being decoded."""

    sample: int
    order: int
    canvas: Canvas
    tokens: IntArray
    block: int = 0
    steps_in_block: int = 0
    steps: int = 0
    path: IntArray | None = None
    uniforms: NDArray[np.float64] | None = None
    finish_reason: str | None = None

    @property
    def block_start(self) -> int:
        """First position of the current block."""
        return self.canvas.block_starts[self.block]

    @property
    def block_stop(self) -> int:
        """One past the current block."""
        return self.block_start + self.canvas.block_size

    @property
    def first_open(self) -> int:
        """First position of the current block that is not prompt."""
        return max(self.block_start, self.canvas.prompt_length)


@dataclass(frozen=True, slots=True)
class Generation:
    """What one call produced: trace columns, and per chain its tokens and why it ended."""

    columns: Columns
    chains: Sequence[Chain]


def generate_batch(
    model: Model,
    samples: Sequence[EncodedSample],
    orders: Sequence[Order],
    settings: GenerationSettings,
    on_reveals: Advance | None = None,
    limit: BatchLimit | None = None,
) -> Generation:
    """Decode every prompt under every order; columns come sorted by (sample, order, step).

    When memory runs out, half of the unfinished chains wait and are taken up later where they stood;
    ``limit`` remembers how many fit.
    """
    for order in orders:
        if isinstance(order, OracleOrder):
            raise UserInputError(
                f"order '{order.spec}' needs a known target and cannot generate; use it with score"
            )
    chains = _open_chains(model, samples, orders, settings)
    check_fits(model, samples, [chains[i * len(orders)].canvas for i in range(len(samples))])
    _check_paths(chains, samples, orders)
    recorder = _Recorder()
    widths = [model.block_size if model.attention == "block-causal" else chain.canvas.end for chain in chains]
    advance, known = on_reveals or (lambda _: None), limit or BatchLimit()

    def work(batch: Sequence[Chain]) -> None:
        _Batch(model, samples, orders, settings, recorder, advance, list(batch)).run()

    def name(chain: Chain) -> str:
        return f"sample '{samples[chain.sample].id}' under '{orders[chain.order].spec}'"

    for width in sorted(set(widths)):
        group = [chain for chain, own in zip(chains, widths, strict=True) if own == width]
        run_within(known, model, group, work, name, _unfinished)
    return Generation(recorder.columns(), chains)


def _unfinished(chains: Sequence[Chain]) -> list[Chain]:
    return [chain for chain in chains if chain.finish_reason is None]


def _check_paths(chains: Sequence[Chain], samples: Sequence[EncodedSample], orders: Sequence[Order]) -> None:
    """Refuse a static order with a wrong path in any block before the first one is decoded."""
    for chain in chains:
        order, canvas = orders[chain.order], chain.canvas
        if isinstance(order, StaticOrder):
            for block, start in enumerate(canvas.block_starts):
                n_open = start + canvas.block_size - max(start, canvas.prompt_length)
                check_path(order, n_open, samples[chain.sample].id, block)


def _open_chains(
    model: Model, samples: Sequence[EncodedSample], orders: Sequence[Order], settings: GenerationSettings
) -> list[Chain]:
    chains = []
    for index, sample in enumerate(samples):
        canvas = Canvas.plan(
            len(sample.prompt), settings.max_new_tokens, model.block_size, settings.anchor or model.anchor
        )
        for o in range(len(orders)):
            tokens = np.full(canvas.end, model.mask_id)
            tokens[: canvas.prompt_length] = sample.prompt
            chains.append(Chain(index, o, canvas, tokens))
    return chains


@dataclass(slots=True)
class _Recorder:
    rounds: list[dict[str, NDArray[Any]]] = field(default_factory=list)

    def columns(self) -> Columns:
        merged = {name: np.concatenate([part[name] for part in self.rounds]) for name in self.rounds[0]}
        in_order = np.lexsort((merged["step"], merged["order"], merged["sample"]))
        return {name: values[in_order] for name, values in merged.items()}


class _Batch:
    """Chains of one window width that advance together."""

    def __init__(
        self,
        model: Model,
        samples: Sequence[EncodedSample],
        orders: Sequence[Order],
        settings: GenerationSettings,
        recorder: _Recorder,
        on_reveals: Advance,
        chains: list[Chain],
    ) -> None:
        self.model, self.samples, self.orders, self.settings = model, samples, orders, settings
        self.recorder, self.on_reveals, self.chains = recorder, on_reveals, chains
        self.blockwise = model.attention == "block-causal"
        self.session = model.open_session()

    def run(self) -> None:
        """Decode all chains to their end, each from where it stands.

        A chain changes only after the model calls it depends on have succeeded, so a run that fails for lack
        of memory can be repeated with fewer chains.
        """
        self._prefill()
        for chain in self.chains:
            if not chain.steps_in_block:
                self._enter_block(chain)
        while True:
            self._leave_full_blocks()  # first: a chain taken up again may stand at the end of its block
            if not self.chains:
                return
            self._round()

    def _prefill(self) -> None:
        """Cache every distinct prefix once; the orders of a prompt share it."""
        keys = [(chain.canvas.offset, chain.tokens[: chain.block_start].tobytes()) for chain in self.chains]
        distinct = {
            key: chain.tokens[: chain.block_start] for key, chain in zip(keys, self.chains, strict=True)
        }
        self.session.prefill(list(distinct.values()), [offset for offset, _ in distinct])
        place = {key: index for index, key in enumerate(distinct)}
        self.session.keep(np.array([place[key] for key in keys]))

    def _enter_block(self, chain: Chain) -> None:
        order, sample_id = self.orders[chain.order], self.samples[chain.sample].id
        chain.steps_in_block = 0
        if isinstance(order, StaticOrder):
            n_open = chain.block_stop - chain.first_open
            chain.path = chain.first_open + check_path(order, n_open, sample_id, chain.block)
        if self.settings.temperature > 0:
            seed = self.settings.sample_seed
            chain.uniforms = block_uniforms(seed, sample_id, order, chain.block, self.model.block_size)

    def _round(self) -> None:
        """Reveal one token in every chain."""
        windows = [self._window(chain) for chain in self.chains]
        tokens_CW = np.stack(
            [chain.tokens[low:high] for chain, (low, high) in zip(self.chains, windows, strict=True)]
        )
        start_C = np.array([low for low, _ in windows])
        open_CW = self._open(tokens_CW, start_C)
        wanted_CW = self._wanted(open_CW, start_C)
        state_R, offset_R = np.nonzero(wanted_CW)
        rows = self.session.evaluate(
            StateBatch(np.arange(len(self.chains)), start_C, tokens_CW, state_R, offset_R)
        )
        stats = position_stats(rows, self.model.eos_ids)
        row_CW = np.full(wanted_CW.shape, -1)
        row_CW[state_R, offset_R] = np.arange(len(state_R))
        place_C, tied_C, draws = self._choose(rows, stats, row_CW, wanted_CW, start_C)
        chosen_C = row_CW[np.arange(len(place_C)), place_C]
        self._commit(start_C + place_C, tied_C, stats.take(chosen_C), draws)

    def _window(self, chain: Chain) -> tuple[int, int]:
        return (chain.block_start, chain.block_stop) if self.blockwise else (0, chain.canvas.end)

    def _open(self, tokens_CW: IntArray, start_C: IntArray) -> NDArray[np.bool_]:
        position_CW = start_C[:, None] + np.arange(tokens_CW.shape[1])
        stop_C = np.array([chain.block_stop for chain in self.chains])
        result: NDArray[np.bool_] = (tokens_CW == self.model.mask_id) & (position_CW < stop_C[:, None])
        return result

    def _wanted(self, open_CW: NDArray[np.bool_], start_C: IntArray) -> NDArray[np.bool_]:
        """Static orders need one row; the others need every masked one."""
        wanted_CW = open_CW.copy()
        for c, chain in enumerate(self.chains):
            if chain.path is not None:
                wanted_CW[c] = False
                wanted_CW[c, chain.path[chain.steps_in_block] - start_C[c]] = True
        return wanted_CW

    def _choose(
        self,
        rows: Rows,
        stats: PositionStats,
        row_CW: IntArray,
        wanted_CW: NDArray[np.bool_],
        start_C: IntArray,
    ) -> tuple[IntArray, IntArray, DrawStats | None]:
        """Return chosen offset and tie count per chain, and the draws of the chosen rows at T > 0."""
        place_C, tied_C = wanted_CW.argmax(axis=1), np.zeros(len(self.chains), np.int64)
        order_C = np.array([chain.order for chain in self.chains])
        for o in np.unique(order_C):
            order, mine = self.orders[o], np.flatnonzero(order_C == o)
            if isinstance(order, DrawingOrder) and self.settings.temperature > 0:
                place_C[mine], tied_C[mine] = self._choose_among_draws(
                    order, rows, stats, row_CW, wanted_CW, mine
                )
            elif isinstance(order, ConfidenceOrder):
                place_C[mine], tied_C[mine] = choose(order.scores(stats), row_CW[mine], wanted_CW[mine])
        if self.settings.temperature == 0:
            return place_C, tied_C, None
        everyone = np.arange(len(self.chains))
        chosen_C = row_CW[everyone, place_C]
        numbers_C = np.array([self._uniform(int(c), int(start_C[c] + place_C[c])) for c in everyone])
        return (
            place_C,
            tied_C,
            draw_stats(take_rows(rows, chosen_C), stats.take(chosen_C), self.settings.temperature, numbers_C),
        )

    def _choose_among_draws(
        self,
        order: DrawingOrder,
        rows: Rows,
        stats: PositionStats,
        row_CW: IntArray,
        wanted_CW: NDArray[np.bool_],
        mine: IntArray,
    ) -> tuple[IntArray, IntArray]:
        """Draw a token at every masked position of these chains and compare the draws."""
        chain_r, offset_r = np.nonzero(wanted_CW[mine])
        row_r = row_CW[mine[chain_r], offset_r]
        start = [self._window(self.chains[c])[0] for c in mine]
        numbers = np.array(
            [self._uniform(int(mine[c]), int(start[c] + w)) for c, w in zip(chain_r, offset_r, strict=True)]
        )
        draws = draw_stats(take_rows(rows, row_r), stats.take(row_r), self.settings.temperature, numbers)
        place_cW = np.full((len(mine), wanted_CW.shape[1]), -1)
        place_cW[chain_r, offset_r] = np.arange(len(row_r))
        return choose(order.draw_scores(draws), place_cW, wanted_CW[mine])

    def _uniform(self, c: int, position: int) -> float:
        """The number behind the draw at ``position`` in this step: the same for every way of asking."""
        chain = self.chains[c]
        assert chain.uniforms is not None
        return float(chain.uniforms[chain.steps_in_block, position - chain.block_start])

    def _commit(
        self, position_C: IntArray, tied_C: IntArray, stats: PositionStats, draws: DrawStats | None
    ) -> None:
        token_C = stats.top_token if draws is None else draws.token
        logq_C = stats.top_logprob if draws is None else draws.logprob
        chains = self.chains
        columns: dict[str, NDArray[Any]] = {
            "sample": np.array([chain.sample for chain in chains]),
            "order": np.array([chain.order for chain in chains]),
            "block": np.array([chain.block for chain in chains]),
            "step": np.array([chain.steps for chain in chains]),
            "position": position_C,
            "token_id": token_C,
            "top_token": stats.top_token,
            "logq": np.minimum(logq_C, 0.0),
            "max_logprob": np.minimum(stats.top_logprob, 0.0),
            "second_logprob": stats.second_logprob,
            "entropy": stats.entropy,
            "is_overflow": position_C >= np.array([chain.canvas.requested_end for chain in chains]),
            "n_tied": tied_C,
        }
        if draws is not None:
            columns["tempered_logq"] = np.minimum(draws.tempered_logprob, 0.0)
        self.recorder.rounds.append(columns)
        for chain, position, token in zip(chains, position_C, token_C, strict=True):
            chain.tokens[position] = token
            chain.steps += 1
            chain.steps_in_block += 1
        self.on_reveals(len(chains))

    def _leave_full_blocks(self) -> None:
        """End or advance every chain whose block is full; drop the ended ones."""
        full = [
            c
            for c, chain in enumerate(self.chains)
            if chain.steps_in_block == chain.block_stop - chain.first_open
        ]
        if not full:
            return
        for c in full:
            self._finish_if_done(self.chains[c])
        moving = [c for c in full if self.chains[c].finish_reason is None]
        if moving and self.blockwise:
            blocks = [
                self.chains[c].tokens[self.chains[c].block_start : self.chains[c].block_stop] for c in moving
            ]
            self.session.extend(np.array(moving), np.stack(blocks))
        for c in moving:
            self.chains[c].block += 1
            self._enter_block(self.chains[c])
        staying = [c for c, chain in enumerate(self.chains) if chain.finish_reason is None]
        if len(staying) < len(self.chains):
            self.session.keep(np.array(staying, dtype=np.int64))
            self.chains = [self.chains[c] for c in staying]

    def _finish_if_done(self, chain: Chain) -> None:
        block = chain.tokens[chain.first_open : chain.block_stop]
        if self.settings.stop_at_eos and np.isin(block, sorted(self.model.eos_ids)).any():
            chain.finish_reason = "eos"
        elif chain.block_stop == chain.canvas.end:
            chain.finish_reason = "length"
