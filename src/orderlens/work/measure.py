"""Two measurements that need forwards of their own: adjacent-swap circulation and the numerical noise floor.

Both start from the paths of a scored batch. Circulation asks how much two neighbouring reveals care which
of them came first; the noise floor asks how much of any gap between orders is only rounding. The arithmetic
and the column definitions are in ``orderlens.metrics.coherence``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from orderlens.decode.events import Columns
from orderlens.decode.places import plan_canvases
from orderlens.decode.reference import score_plainly
from orderlens.decode.score import score_batch
from orderlens.decode.target_states import TargetStates
from orderlens.models.abilities import CastsDtype
from orderlens.models.protocol import Anchor, IntArray, Model
from orderlens.orders.fixed import ForcedAR
from orderlens.policies.policy import Policy
from orderlens.rng import keyed_generator
from orderlens.samples import EncodedSample
from orderlens.store.schema import table_schema


def circulation_table(
    model: Model,
    samples: Sequence[EncodedSample],
    orders: Sequence[Policy],
    columns: Columns,
    n_pairs: int,
    *,
    seed: int = 0,
    anchor: Anchor | None = None,
) -> pa.Table:
    """Measure Γ for up to ``n_pairs`` adjacent reveals per sample and order.

    Γ_ij(R) = [log p(i|R) + log p(j|R,i)] − [log p(j|R) + log p(i|R,j)], with i and j revealed one after the
    other in the same block, R what was visible before. Pairs are drawn by a generator keyed by
    (seed, sample id, order).

    Args:
        model: the model that was scored.
        samples: the scored batch.
        orders: its orders.
        columns: what ``score_batch`` returned for them.
        n_pairs: pairs per (sample, order).
        seed: of the choice of pairs.
        anchor: as when scoring.
    """
    rows: list[dict[str, Any]] = []
    for s, sample in enumerate(samples):
        states = TargetStates(
            model, [sample], plan_canvases(model.block_size, [sample], anchor or model.anchor)
        )
        pairs = [
            _Pair(o, int(columns["block"][at]), _visible_before(columns, at), at)
            for o, order in enumerate(orders)
            for at in _chosen_steps(
                columns, s, o, n_pairs, keyed_generator(seed, sample.id, order.spec, "pairs")
            )
        ]
        rows += _measure_pairs(states, sample, orders, columns, pairs) if pairs else []
    return pa.Table.from_pylist(rows, schema=table_schema("circulation"))


@dataclass(frozen=True, slots=True)
class _Pair:
    order: int
    block: int
    revealed: IntArray
    at: int


def _chosen_steps(
    columns: Columns, sample: int, order: int, n: int, generator: np.random.Generator
) -> list[int]:
    """Rows of ``columns`` whose successor is in the same trace and block, at most ``n``, in trace order."""
    mine = np.flatnonzero((columns["sample"] == sample) & (columns["order"] == order))
    inner = mine[:-1][columns["block"][mine[:-1]] == columns["block"][mine[1:]]]
    return sorted(generator.choice(inner, size=min(n, len(inner)), replace=False).tolist())


def _visible_before(columns: Columns, at: int) -> IntArray:
    """Positions of the same block revealed before row ``at`` (its trace is contiguous and in step order)."""
    low = at
    while low > 0 and all(
        columns[name][low - 1] == columns[name][at] for name in ("sample", "order", "block")
    ):
        low -= 1
    return np.asarray(columns["position"][low:at])


def _measure_pairs(
    states: TargetStates,
    sample: EncodedSample,
    orders: Sequence[Policy],
    columns: Columns,
    pairs: Sequence[_Pair],
) -> Iterator[dict[str, Any]]:
    """Evaluate three states per pair (nothing of the pair shown, i shown, j shown) in one batch."""
    blocks = states.blocks
    m_P = np.array([pair.block for pair in pairs])
    i_P, j_P = (columns["position"][[pair.at + k for pair in pairs]] - blocks.start_M[m_P] for k in (0, 1))
    before_PB = blocks.given_MB[m_P].copy()
    for row, pair in zip(before_PB, pairs, strict=True):
        row[pair.revealed - blocks.start_M[pair.block]] = True
    index = np.arange(len(pairs))
    with_i_PB, with_j_PB = before_PB.copy(), before_PB.copy()
    with_i_PB[index, i_P] = True
    with_j_PB[index, j_P] = True
    wanted = np.zeros((3 * len(pairs), before_PB.shape[1]), bool)
    wanted[index, i_P] = wanted[index, j_P] = True
    wanted[len(pairs) + index, j_P] = wanted[2 * len(pairs) + index, i_P] = True
    row_UB, stats = states.evaluate(
        np.tile(m_P, 3), np.concatenate([before_PB, with_i_PB, with_j_PB]), wanted
    )
    logp = stats.target_logprob
    logp_i, logp_j = logp[row_UB[index, i_P]], logp[row_UB[index, j_P]]
    j_after_i, i_after_j = logp[row_UB[len(pairs) + index, j_P]], logp[row_UB[2 * len(pairs) + index, i_P]]
    gamma = (logp_i + j_after_i) - (logp_j + i_after_j)
    masked = (blocks.open_MB[m_P] & ~before_PB).sum(axis=1) / blocks.open_MB[m_P].sum(axis=1)
    for p, pair in enumerate(pairs):
        first, second = (int(columns["position"][pair.at + k]) for k in (0, 1))
        yield {
            "sample_id": sample.id,
            "task": sample.task,
            "order": orders[pair.order].label,
            "seed": orders[pair.order].seed,
            "block": pair.block,
            "step": int(columns["step"][pair.at]),
            "position_i": first,
            "position_j": second,
            "distance": abs(second - first),
            "mask_ratio": float(masked[p]),
            "logp_i": float(logp_i[p]),
            "logp_j_given_i": float(j_after_i[p]),
            "logp_j": float(logp_j[p]),
            "logp_i_given_j": float(i_after_j[p]),
            "gamma": float(gamma[p]),
        }


@dataclass(frozen=True, slots=True)
class Replay(Policy):
    """A static policy over the recorded paths and passes of (sample id, block)."""

    recorded: Mapping[tuple[str, int], tuple[IntArray, IntArray]] = field(default_factory=dict)

    @classmethod
    def recorded_in(cls, columns: Columns, samples: Sequence[EncodedSample], order: int) -> Replay:
        """Return the paths of one policy of a scored batch, from its trace columns."""
        found: dict[tuple[str, int], tuple[IntArray, IntArray]] = {}
        for s, sample in enumerate(samples):
            mine = (columns["sample"] == s) & (columns["order"] == order)
            for block in np.unique(columns["block"][mine]):
                here = mine & (columns["block"] == block)
                position, forward = columns["position"][here], columns["forward"][here]
                found[sample.id, int(block)] = np.argsort(np.argsort(position)), forward - forward.min()
        return cls(ForcedAR(), recorded=found)

    @property
    def is_static(self) -> bool:
        """Recorded paths need no model."""
        return True

    def planned(self, n_positions: int, sample_id: str, block: int) -> tuple[IntArray, IntArray]:
        """Return the recorded path of this block and the pass of each of its steps."""
        return self.recorded[sample_id, block]


def noise_table(
    model: Model,
    samples: Sequence[EncodedSample],
    orders: Sequence[Policy],
    columns: Columns,
    *,
    anchor: Anchor | None = None,
    n_uncached: int = 1,
) -> pa.Table:
    """Score recorded paths again under perturbations that should change nothing.

    ``batch-size``: every sample alone instead of in its batch. ``bfloat16``: weights and activations in
    bfloat16 (models that can be cast). ``cache``: one whole-window forward per step without a
    prefix cache; slow, so only the first ``n_uncached`` samples under the first order.
    """
    replays = [Replay.recorded_in(columns, samples, o) for o in range(len(orders))]
    rounded = model.with_dtype("bfloat16") if isinstance(model, CastsDtype) else None
    rows: list[dict[str, Any]] = []
    for o, replay in enumerate(replays):
        for s, sample in enumerate(samples):
            base = columns["logq"][(columns["sample"] == s) & (columns["order"] == o)]
            label = {
                "sample_id": sample.id,
                "task": sample.task,
                "order": orders[o].label,
                "seed": orders[o].seed,
            }
            found = {"batch-size": score_batch(model, [sample], [replay], anchor)["logq"]}
            if rounded is not None:
                found["bfloat16"] = score_batch(rounded, [sample], [replay], anchor)["logq"]
            if o == 0 and s < n_uncached:
                found["cache"] = np.array(
                    [item.logq for item in score_plainly(model, sample, replay, anchor)]
                )
            for name, logq in found.items():
                sums = {
                    "log_prob": float(base.sum()),
                    "log_prob_perturbed": float(logq.sum()),
                    "n": len(base),
                }
                rows.append({**label, "perturbation": name, **sums})
    return pa.Table.from_pylist(rows, schema=table_schema("noise"))
