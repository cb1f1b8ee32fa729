"""Generation: decode many (prompt, policy) chains in one batch.

The canvas is rounded up to whole blocks, because the conditionals depend on the number of visible masks.
Tokens past the requested length are recorded with ``is_overflow``. With a suffix, or with overflow "mask",
decoding stops at the requested length; in the latter case the positions after it stay masked.

This module plans the chains; ``rounds`` decodes them in batches that fit in memory. Does not depend on files,
text or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from orderlens.common.grid import Canvas, Overflow
from orderlens.common.temperature import TemperatureSchedule
from orderlens.decode.batches import BatchLimit, interleave, run_in_batches, split_for_overlap
from orderlens.decode.beams import BeamBatch
from orderlens.decode.chains import Chain, Chains, Watch, live_canvases
from orderlens.decode.passes import Columns, StateRecorder, TraceRecorder
from orderlens.decode.rounds import Advance, Rounds
from orderlens.decode.search import SearchBatch
from orderlens.decode.target_states import check_fits, plan_canvases
from orderlens.errors import UserInputError
from orderlens.models.protocol import Anchor, Model
from orderlens.rules.orders import Order
from orderlens.rules.policy import Policy
from orderlens.rules.search import Beams
from orderlens.texts.samples import EncodedSample

MAX_NEW_TOKENS = 16384
MIN_TEMPERATURE = 1e-4
"""Smallest temperature above 0. Float32 logits near 16 have an error of 2e-6, which is small against it."""


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Settings of a generation: length, temperature, seed, stopping, block grid, overflow."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    sample_seed: int = 0
    stop_at_eos: bool = True
    anchor: Anchor | None = None
    overflow: Overflow = "fill"

    def __post_init__(self) -> None:
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise UserInputError(
                f"max_new_tokens={self.max_new_tokens} must be between 1 and {MAX_NEW_TOKENS}"
            )
        heat = self.temperature
        if isinstance(heat, TemperatureSchedule):
            if not all(MIN_TEMPERATURE <= end < np.inf for end in (heat.start, heat.end)):
                raise UserInputError(
                    f"temperature={heat}: both ends of a schedule must be finite and at least "
                    f"{MIN_TEMPERATURE:g}; for a nearly greedy end use {MIN_TEMPERATURE:g}"
                )
        elif not 0 <= heat < np.inf:
            raise UserInputError(f"temperature={heat} must be a finite number ≥ 0")
        elif 0 < heat < MIN_TEMPERATURE:
            raise UserInputError(
                f"temperature={heat} is between 0 and {MIN_TEMPERATURE:g}, where rounding "
                f"errors decide the draws; use 0 for greedy decoding, or at least {MIN_TEMPERATURE:g}"
            )


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one call: trace columns, revisions, and the finished chains."""

    columns: Columns
    revisions: Columns
    chains: Sequence[Chain]


def generate_batch(
    model: Model,
    samples: Sequence[EncodedSample],
    policies: Sequence[Policy | Order],
    settings: GenerationSettings,
    on_reveals: Advance | None = None,
    limit: BatchLimit | None = None,
    watch: Watch | None = None,
    states: StateRecorder | None = None,
) -> Generation:
    """Decode every prompt under every policy; columns are sorted by (sample, order, step).

    When memory runs out, half of the unfinished chains wait and are resumed later from their last pass.
    ``limit`` stores the number that fits. ``watch`` receives the texts of one sample after each progress,
    ``states`` the state of every chain in every pass.
    """
    chosen = [Policy.of(policy) for policy in policies]
    for policy in chosen:
        policy.refuse_to_generate()
    anchor = settings.anchor or model.anchor
    canvases = plan_canvases(model.block_size, samples, anchor, settings.max_new_tokens, settings.overflow)
    check_fits(model, samples, canvases)
    searching = [p for p, policy in enumerate(chosen) if policy.search is not None]
    if not searching:
        return _decode(model, samples, chosen, canvases, settings, on_reveals, limit, watch, states)
    if states is not None:
        chosen[searching[0]].refuse_to_keep_states()
    found: list[tuple[Generation, Sequence[int]]] = []
    beams = [p for p in searching if isinstance(chosen[p].search, Beams)]
    for kind, own in ((SearchBatch, [p for p in searching if p not in beams]), (BeamBatch, beams)):
        if not own:
            continue
        batch = kind(
            model,
            samples,
            [chosen[p] for p in own],
            canvases,
            temperature=settings.temperature,
            sample_seed=settings.sample_seed,
            stop_at_eos=settings.stop_at_eos,
            on_reveals=on_reveals or (lambda _: None),
            limit=limit or BatchLimit(),
        )
        columns, kept = batch.run()
        found.append((Generation(columns, {}, kept), own))
    if plain := [p for p in range(len(chosen)) if p not in searching]:
        rest = [chosen[p] for p in plain]
        found.append(
            (_decode(model, samples, rest, canvases, settings, on_reveals, limit, watch, None), plain)
        )
    return _joined(found)


def _decode(
    model: Model,
    samples: Sequence[EncodedSample],
    chosen: Sequence[Policy],
    canvases: Sequence[Canvas],
    settings: GenerationSettings,
    on_reveals: Advance | None,
    limit: BatchLimit | None,
    watch: Watch | None,
    states: StateRecorder | None,
) -> Generation:
    """Decode every prompt under every policy along one path each."""
    chains = Chains(model, samples, chosen, canvases, settings.sample_seed)
    chains.check_paths()
    recorder, batch_limit = TraceRecorder(), limit or BatchLimit()

    def advance(n_new: int) -> None:
        if on_reveals is not None:
            on_reveals(n_new)
        if watch is not None:
            watch(live_canvases(chains))

    def work(batch: Sequence[int]) -> None:
        parts = split_for_overlap(batch)
        interleave(
            Rounds(
                model,
                chains,
                np.asarray(part),
                recorder,
                advance,
                temperature=settings.temperature,
                stop_at_eos=settings.stop_at_eos,
                alone=len(parts) == 1,
                states=states,
            ).passes()
            for part in parts
        )

    def name(n: int) -> str:
        return f"sample '{samples[chains.sample_N[n]].id}' under '{chosen[chains.policy_N[n]].spec}'"

    def unfinished(batch: Sequence[int]) -> list[int]:
        return [n for n in batch if chains.reason[n] is None]

    widths = [chains.width(n) for n in range(len(chains.canvases))]
    for width in sorted(set(widths)):
        members = [n for n, own in enumerate(widths) if own == width]
        run_in_batches(batch_limit, model, members, work, name, unfinished)
    return Generation(*recorder.columns(), chains.finished())


def _joined(parts: Sequence[tuple[Generation, Sequence[int]]]) -> Generation:
    """Join the results of disjoint sets of policies, each given with the indices of its policies."""
    columns = [_renamed(part.columns, own) for part, own in parts]
    names = dict.fromkeys(name for part in columns for name in part)
    sizes = [len(part["step"]) for part in columns]
    reveals = {
        name: np.concatenate(
            [part.get(name, np.zeros(size, np.int64)) for part, size in zip(columns, sizes, strict=True)]
        )
        for name in names
    }
    by = np.lexsort((reveals["step"], reveals["order"], reveals["sample"]))
    revisions = [_renamed(part.revisions, own) for part, own in parts if part.revisions]
    chains = [replace(chain, order=own[chain.order]) for part, own in parts for chain in part.chains]
    return Generation(
        {name: values[by] for name, values in reveals.items()},
        revisions[0] if revisions else {},
        sorted(chains, key=lambda chain: (chain.sample, chain.order)),
    )


def _renamed(columns: Columns, own: Sequence[int]) -> Columns:
    return {**columns, "order": np.asarray(own)[columns["order"]]} if columns else columns
