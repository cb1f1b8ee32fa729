"""The generator: many (prompt, policy) chains in one batch, each at its own pace.

The canvas is rounded up to whole blocks, because the conditionals depend on how many masks are visible;
tokens past the requested length are recorded with ``is_overflow``. With a given suffix nothing is decoded
past the requested length.

Plans the chains and hands them to ``rounds`` in batches that fit in memory. Knows nothing of files, text or
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orderlens.decode.batches import BatchLimit, groups, interleave, run_within
from orderlens.decode.chains import Chain, Chains, Watch, live_canvases
from orderlens.decode.passes import Columns, Recorder
from orderlens.decode.rounds import Advance, Rounds
from orderlens.decode.target_states import check_fits, plan_canvases
from orderlens.errors import UserInputError
from orderlens.models.protocol import Anchor, Model
from orderlens.rules.orders.protocol import Order
from orderlens.rules.policy import Policy
from orderlens.texts.samples import EncodedSample

MAX_NEW_TOKENS = 16384
MIN_TEMPERATURE = 1e-4
"""Smallest temperature above 0: float32 logits near 16 are known to 2e-6, small against it."""


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


@dataclass(frozen=True, slots=True)
class Generation:
    """What one call produced: trace columns, revisions, and per chain its tokens and why it ended."""

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
) -> Generation:
    """Decode every prompt under every policy; columns come sorted by (sample, order, step).

    When memory runs out, half of the unfinished chains wait and are taken up later where they stood;
    ``limit`` remembers how many fit. ``watch`` is shown one sample's texts whenever they got further.
    """
    chosen = [Policy.of(policy) for policy in policies]
    for policy in chosen:
        policy.refuse_to_generate()
    canvases = plan_canvases(
        model.block_size, samples, settings.anchor or model.anchor, settings.max_new_tokens
    )
    check_fits(model, samples, canvases)
    chains = Chains(model, samples, chosen, canvases, settings.sample_seed)
    chains.check_paths()
    recorder, known = Recorder(), limit or BatchLimit()

    def advance(news: int) -> None:
        if on_reveals is not None:
            on_reveals(news)
        if watch is not None:
            watch(live_canvases(chains))

    def work(batch: Sequence[int]) -> None:
        parts = groups(batch)
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
            ).passes()
            for part in parts
        )

    def name(n: int) -> str:
        return f"sample '{samples[chains.sample_N[n]].id}' under '{chosen[chains.policy_N[n]].spec}'"

    def unfinished(batch: Sequence[int]) -> list[int]:
        return [n for n in batch if chains.reason[n] is None]

    widths = [chains.width(n) for n in range(len(chains.canvases))]
    for width in sorted(set(widths)):
        run_within(known, model, [n for n, own in enumerate(widths) if own == width], work, name, unfinished)
    return Generation(*recorder.columns(), chains.finished())
