"""Two measurements with additional forward passes: adjacent-swap circulation and the numerical noise floor.

Both start from the paths of a scored batch. Circulation is the change in log-probability when two adjacent
reveals are swapped. The noise floor is the part of a gap between orders that numerical rounding alone can
produce. The arithmetic and the column definitions are in ``orderlens.metrics.coherence``.

The noise floor includes the effect of the prefix cache. A ``RecomputingSession`` recomputes the clean prefix
of every state separately, with the same engine, kernels and precision. This is slow by design.

Shape letters: N states, R rows.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from orderlens.common.machine import is_out_of_memory
from orderlens.common.rng import keyed_generator
from orderlens.decode.batches import BatchLimit
from orderlens.decode.head import blank_rows, put_rows
from orderlens.decode.passes import Columns
from orderlens.decode.reference import reference_score
from orderlens.decode.score import score_batch
from orderlens.decode.target_states import TargetStates, plan_canvases
from orderlens.errors import DeviceMemoryError, ModelLoadError, ModelOutputError, one_line
from orderlens.models.abilities import CastsDtype, RoundsWeights, device_type, other_dtype
from orderlens.models.protocol import Anchor, CleanTokens, IntArray, Model, Rows, Session, StateBatch
from orderlens.rules.orders.basic import ForcedAR
from orderlens.rules.policy import Policy
from orderlens.store.schema import table_schema
from orderlens.texts.samples import EncodedSample

_log = logging.getLogger(__name__)


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

    Γ_ij(R) = [log p(i|R) + log p(j|R,i)] − [log p(j|R) + log p(i|R,j)]. Here i and j are revealed in
    consecutive steps of one block, and R is the set of tokens visible before. Pairs are drawn by a generator
    keyed by (seed, sample id, order).

    Args:
        model: the model that was scored.
        samples: the scored batch.
        orders: its orders.
        columns: the result of ``score_batch`` for them.
        n_pairs: maximum number of pairs per (sample, order).
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
    """Return at most ``n`` rows whose next row is in the same trace and block, in trace order."""
    mine = np.flatnonzero((columns["sample"] == sample) & (columns["order"] == order))
    inner = mine[:-1][columns["block"][mine[:-1]] == columns["block"][mine[1:]]]
    return sorted(generator.choice(inner, size=min(n, len(inner)), replace=False).tolist())


def _visible_before(columns: Columns, at: int) -> IntArray:
    """Return the positions of the block revealed before row ``at``; traces are contiguous, in step order."""
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
    """Evaluate three states per pair (neither shown, i shown, j shown) in one batch."""
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
    """A static policy that replays recorded paths and passes, by (sample id, block)."""

    recorded: Mapping[tuple[str, int], tuple[IntArray, IntArray]] = field(default_factory=dict)

    @classmethod
    def recorded_in(cls, columns: Columns, samples: Sequence[EncodedSample], order: int) -> Replay:
        """Return the replay of one policy of a scored batch, from its trace columns."""
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
        """Return True: recorded paths do not depend on the model's outputs."""
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
    limit: BatchLimit | None = None,
    on_reveals: Callable[[int], None] | None = None,
) -> pa.Table:
    """Score recorded paths again under perturbations that exact arithmetic would not notice.

    ``batch-size``: every sample alone instead of in its batch. ``bfloat16`` (``float16`` for models that are
    in bfloat16 already): weights and activations in another precision, if the model can be cast.
    ``stored-weights``: weights as in the checkpoint, if they were rounded to 8 bits when they were loaded.
    ``cache``: the prefix of every state recomputed separately by the same engine. On a CPU only the first
    sample under the first order, because this costs several times the scoring. A full-attention model caches
    nothing, so that sample is scored by the reference decoder instead.

    Args:
        model: the model that was scored.
        samples: the scored batch.
        orders: its orders.
        columns: the result of ``score_batch`` for them.
        anchor: as when scoring.
        limit: as when scoring.
        on_reveals: called with the number of newly scored tokens; see ``rescorings``.
    """
    replays = [Replay.recorded_in(columns, samples, o) for o in range(len(orders))]
    found: dict[str, _Sums] = {"batch-size": {}}
    for s, sample in enumerate(samples):
        alone = _sums(score_batch(model, [sample], replays, anchor, on_reveals))
        found["batch-size"] |= {(s, o): value for (_, o), value in alone.items()}
    if isinstance(model, CastsDtype):
        name = other_dtype(model)
        cast = _rescored(partial(model.with_dtype, name), name, samples, replays, anchor, limit, on_reveals)
        found |= {name: cast} if cast else {}
    if isinstance(model, RoundsWeights):
        load = model.with_stored_weights
        stored = _rescored(load, STORED, samples, replays, anchor, limit, on_reveals)
        found |= {STORED: stored} if stored else {}
    if model.attention == "full":
        reference = reference_score(model, samples[0], replays[0], anchor)
        found["cache"] = {(0, 0): sum(event.logq for event in reference)}
    else:
        every = _recomputes_every_path(model)
        uncached, paths, told = (samples, replays, on_reveals) if every else (samples[:1], replays[:1], None)
        recompute = partial(RecomputingSession, model)
        found["cache"] = _sums(
            score_batch(model, uncached, paths, anchor, told, limit, open_session=recompute)
        )
    return pa.Table.from_pylist(list(_noise_rows(samples, orders, columns, found)), table_schema("noise"))


def rescorings(model: Model) -> int:
    """Return the number of times that ``noise_table`` scores every token of a batch again."""
    can_change = isinstance(model, CastsDtype) + isinstance(model, RoundsWeights)
    return 1 + can_change + _recomputes_every_path(model)


def _recomputes_every_path(model: Model) -> bool:
    return model.attention != "full" and device_type(model) != "cpu"


STORED = "stored-weights"
"""The perturbation that undoes the rounding of weights."""
_Sums: TypeAlias = dict[tuple[int, int], float]
"""The summed log q of (sample, order)."""


def _sums(columns: Columns) -> _Sums:
    pairs = np.stack((columns["sample"], columns["order"]), axis=1)
    keys, trace = np.unique(pairs, axis=0, return_inverse=True)
    totals = np.bincount(trace.ravel(), columns["logq"], minlength=len(keys))
    return {(int(s), int(o)): float(value) for (s, o), value in zip(keys, totals, strict=True)}


def _rescored(
    load: Callable[[], Model | None],
    name: str,
    samples: Sequence[EncodedSample],
    replays: Sequence[Policy],
    anchor: Anchor | None,
    limit: BatchLimit | None,
    on_reveals: Callable[[int], None] | None,
) -> _Sums | None:
    """Return the sums of another copy of the model; None, with a warning, if it does not fit or overflows."""
    try:
        model = load()
        if model is not None:
            return _sums(score_batch(model, samples, replays, anchor, on_reveals, limit))
        if on_reveals is not None:
            on_reveals(len(replays) * sum(len(sample.target) for sample in samples))
    except (ModelOutputError, ModelLoadError) as error:
        _log.warning("noise floor: not measured in %s: %s", name, one_line(error))
    except Exception as error:
        if not (isinstance(error, DeviceMemoryError) or is_out_of_memory(error)):
            raise
        _log.warning("noise floor: not measured in %s: no memory for a second copy of the weights", name)
    finally:
        gc.collect()  # the copy may be as large as the model
    return None


def _noise_rows(
    samples: Sequence[EncodedSample], orders: Sequence[Policy], columns: Columns, found: Mapping[str, _Sums]
) -> Iterator[dict[str, Any]]:
    base = _sums(columns)
    for o, order in enumerate(orders):
        for s, sample in enumerate(samples):
            n = int(((columns["sample"] == s) & (columns["order"] == o)).sum())
            for name in (name for name in found if (s, o) in found[name]):
                yield {
                    "sample_id": sample.id,
                    "task": sample.task,
                    "order": order.label,
                    "seed": order.seed,
                    "perturbation": name,
                    "log_prob": base[s, o],
                    "log_prob_perturbed": found[name][s, o],
                    "n": n,
                }


STATES_PER_CALL = 512
"""States per call; the prefix of each has its own slot."""


class RecomputingSession(CleanTokens):
    """The Session protocol without a cache: every evaluation computes the prefix of every state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def evaluate(self, states: StateBatch) -> Rows:
        found: Rows | None = None
        for low in range(0, max(1, len(states.slots_N)), STATES_PER_CALL):
            high = low + STATES_PER_CALL
            mine = np.flatnonzero((states.row_state_R >= low) & (states.row_state_R < high))
            rows = self._evaluate(states, slice(low, high), mine)
            found = blank_rows(rows, len(states.row_state_R)) if found is None else found
            put_rows(found, mine, rows)
        assert found is not None
        return found

    def _evaluate(self, states: StateBatch, part: slice, mine: IntArray) -> Rows:
        slots, starts = states.slots_N[part], states.starts_N[part]
        session: Session = self._model.open_session()
        pairs = zip(slots.tolist(), starts.tolist(), strict=True)
        prefixes = [self._slots[slot][:start] for slot, start in pairs]
        session.prefill(prefixes, [self._offsets[slot] for slot in slots.tolist()])
        rows = states.row_state_R[mine] - part.start, states.row_offset_R[mine]
        return session.evaluate(StateBatch(np.arange(len(slots)), starts, states.tokens_NW[part], *rows))
