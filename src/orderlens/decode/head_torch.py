"""The torch head: hidden rows to position statistics without a [rows × vocabulary] float64 tensor.

Rows go to the fused CUDA kernels (``kernels.head``) where they apply. Elsewhere they are processed in chunks
whose float32 logits fit in ``CHUNK_BYTES``; each chunk is reduced at once to a few numbers per row. Operands
keep the model's dtype (bf16 on a GPU), products are accumulated and returned in float32, and the log-sum-exp
is taken in float32.

Shape letters: R rows, V vocabulary, D width, G groups of the vocabulary when drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.kernels.head.fused_head import Draw, can_fuse, reduce_fused
from orderlens.models.engine.layer_parts import product
from orderlens.models.engine.transfer import arriving, to_device
from orderlens.models.protocol import FloatArray, Head, HiddenRows, IntArray
from orderlens.rules.stats import DrawStats, Heat, PositionStats, RowStats, require_finite_rows

CHUNK_BYTES = 64 * 2**20
CPU_CHUNK_BYTES, CPU_CHUNK_ROWS = 4 * 2**20, 64
DRAW_GROUP = 512
"""Vocabulary entries per group when a draw is located: groups first, then inside one group."""
EXCLUDED_LOGIT = -1e30
"""Finite stand-in for −inf, so that p·log p is 0 and not NaN."""


def take_rows(rows: HiddenRows, index_R: IntArray) -> HiddenRows:
    """Return the rows at ``index_R``."""
    index = torch.as_tensor(index_R, device=rows.hidden_RD.device)
    return replace(rows, hidden_RD=rows.hidden_RD[index])


def blank_rows(rows: HiddenRows, count: int) -> HiddenRows:
    """Return ``count`` rows of the same kind without values."""
    return replace(rows, hidden_RD=rows.hidden_RD.new_empty(count, rows.hidden_RD.shape[1]))


def put_rows(into: HiddenRows, index_R: IntArray, rows: HiddenRows) -> None:
    """Write ``rows`` into the places ``index_R`` of rows made by ``blank_rows``."""
    into.hidden_RD[torch.as_tensor(index_R, device=into.hidden_RD.device)] = rows.hidden_RD


def divergence(rows: HiddenRows, earlier: HiddenRows) -> FloatArray:
    """Return KL(rows ‖ earlier) of each pair of rows in nats.

    Both distributions are made from hidden states chunk by chunk in plain torch, also where the fused kernels
    give the statistics: two more products with the output matrix, and no [rows × vocabulary] array is kept.
    """
    found = [torch.empty(0, dtype=torch.float64)]
    for (_, now_RV), (_, before_RV) in zip(_logit_chunks(rows), _logit_chunks(earlier), strict=True):
        log_p_RV, log_q_RV = torch.log_softmax(now_RV, dim=1), torch.log_softmax(before_RV, dim=1)
        kl_R = (log_p_RV.exp() * (log_p_RV - log_q_RV)).sum(dim=1, dtype=torch.float64)
        found.append(kl_R.clamp_min(0).cpu())
    kl: FloatArray = torch.cat(found).numpy()
    return kl


def ask(
    rows: HiddenRows, eos_ids: Iterable[int], targets_R: IntArray | None = None, heat: Heat | None = None
) -> DeviceAnswer:
    """Start reducing the rows; the answer waits for the numbers to arrive on the host."""
    device, eos = rows.hidden_RD.device, sorted(eos_ids)
    targets = None if targets_R is None else to_device(targets_R, device)
    draw = None if heat is None else Draw(heat.temperature, to_device(heat.uniforms_R, device))
    found = _head(rows).reduce(rows, eos, targets, draw)
    return DeviceAnswer(found, arriving(*found), targets_R is not None)


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """An answer that is on its way to the host.

    Attributes:
        found: the head's tensors, as ``Head`` describes them.
        arrive: waits for them.
        has_target: whether the last column is the target's.
    """

    found: tuple[Tensor, ...]
    arrive: Callable[[], Sequence[NDArray[Any]]]
    has_target: bool

    def __call__(self) -> RowStats:
        """Wait, and return the numbers."""
        return _unpacked(self.arrive(), self.has_target)


def _unpacked(found: Sequence[NDArray[Any]], has_target: bool) -> RowStats:
    token_R, values_RC = found[0].astype(np.int64), found[1].astype(np.float64)
    require_finite_rows(~np.isfinite(values_RC[:, 0]))
    stats = PositionStats(token_R, values_RC[:, 1], values_RC[:, 2], values_RC[:, 3], values_RC[:, 4])
    draws = None
    if len(found) > 2:
        draws = DrawStats(stats, found[2].astype(np.int64), found[3][:, 0], found[3][:, 1])
    return RowStats(stats, values_RC[:, 5] if has_target else None, draws)


def _head(rows: HiddenRows) -> Head:
    if rows.head is not None:
        return rows.head
    return _FUSED if can_fuse(rows.hidden_RD, rows.unembed_VD) else _CHUNKED


class ChunkedHead:
    """The Head protocol in plain torch, on any device and in any dtype."""

    def reduce(
        self, rows: HiddenRows, eos_ids: Sequence[int], targets_R: Tensor | None, draw: Draw | None = None
    ) -> tuple[Tensor, ...]:
        device = rows.hidden_RD.device
        eos = torch.tensor(eos_ids, dtype=torch.long, device=device)
        nothing = _nothing(5 if targets_R is None else 6, device)
        parts: list[tuple[Tensor, ...]] = [nothing if draw else nothing[:2]]
        for low, logits_RV in _logit_chunks(rows):
            here = slice(low, low + len(logits_RV))
            wanted = None if targets_R is None else targets_R[here]
            drawn = _draw(logits_RV, draw.temperature, draw.uniforms_R[here]) if draw else ()
            parts.append((*_reduce(logits_RV, eos, wanted), *drawn))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _nothing(n_columns: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the results for no rows."""
    none = torch.empty(0, dtype=torch.long, device=device)
    chances = torch.empty(0, 2, dtype=torch.float64, device=device)
    return none, torch.empty(0, n_columns, device=device), none, chances


class FusedHead:
    """The Head protocol on the CUDA kernels."""

    def reduce(
        self, rows: HiddenRows, eos_ids: Sequence[int], targets_R: Tensor | None, draw: Draw | None = None
    ) -> tuple[Tensor, ...]:
        return reduce_fused(
            rows.hidden_RD,
            rows.unembed_VD,
            excluded=rows.excluded,
            valid_vocab=rows.valid_vocab,
            eos_ids=eos_ids,
            targets_R=targets_R,
            draw=draw,
        )


_CHUNKED, _FUSED = ChunkedHead(), FusedHead()


def _reduce(logits_RV: Tensor, eos: Tensor, targets_R: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return top token [R] and columns (log-sum-exp, top, second, entropy, EOS[, target]) [R, 5 or 6].

    Everything is measured from the largest logit, so that log-probabilities near 0 keep their digits and one
    exponential per entry serves the normaliser and the entropy. The logits are used up.
    """
    top_R, token_R = _first_maximum(logits_RV)
    below_RV = logits_RV.sub_(top_R[:, None])
    second_R = below_RV.scatter_(1, token_R[:, None], EXCLUDED_LOGIT).amax(dim=1)
    below_RV.scatter_(1, token_R[:, None], 0.0)
    weight_RV = torch.exp(below_RV)
    mass_R = weight_RV.sum(dim=1)
    log_mass_R = mass_R.log()
    entropy_R = log_mass_R - weight_RV.mul_(below_RV).sum(dim=1) / mass_R
    none_R = torch.full_like(top_R, -torch.inf)
    eos_R = torch.logsumexp(below_RV[:, eos], dim=1) if len(eos) else none_R
    target = [] if targets_R is None else [below_RV.gather(1, targets_R[:, None])[:, 0] - log_mass_R]
    columns = [top_R + log_mass_R, -log_mass_R, second_R - log_mass_R, entropy_R.clamp_min(0)]
    return token_R, torch.stack([*columns, eos_R - log_mass_R, *target], dim=1)


def _first_maximum(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum and its lowest index (numpy promises it, torch leaves it open among equals)."""
    if logits_RV.device.type == "cpu":
        token_R = torch.from_numpy(logits_RV.numpy().argmax(axis=1))
        return logits_RV.gather(1, token_R[:, None])[:, 0], token_R
    top_R = logits_RV.amax(dim=1)
    index_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    token_R = torch.where(logits_RV >= top_R[:, None], index_V, logits_RV.shape[1]).amin(dim=1)
    return top_R, token_R.clamp_max(logits_RV.shape[1] - 1)


def _draw(logits_RV: Tensor, temperature: float, uniforms_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return one drawn token per row and its log-probabilities [R, 2] at temperature 1 and at this one."""
    below_RV = logits_RV - logits_RV.amax(dim=1, keepdim=True)
    log_mass_R = torch.exp(below_RV).sum(dim=1).log()  # as the statistics do: equal for the top token
    scaled_RV = below_RV / temperature
    token_R, mass_R = _invert(torch.exp(scaled_RV), uniforms_R)
    picked_R = below_RV.gather(1, token_R[:, None])[:, 0] - log_mass_R
    tempered_R = scaled_RV.gather(1, token_R[:, None])[:, 0].double() - mass_R.log()
    return token_R, torch.stack([picked_R.double(), tempered_R], dim=1)


def _invert(weight_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token where the cumulative weight passes uniform × total, and the total, per row.

    Group sums are added in float64 ([R, V/512]); only the one group that holds the draw is expanded.
    """
    padding = -weight_RV.shape[1] % DRAW_GROUP
    weight_RGK = torch.nn.functional.pad(weight_RV, (0, padding)).view(len(weight_RV), -1, DRAW_GROUP)
    cumulative_RG = weight_RGK.sum(dim=2, dtype=torch.float64).cumsum(dim=1)
    total_R = cumulative_RG[:, -1]
    goal_R1 = (uniform_R * total_R)[:, None]
    group_R = (cumulative_RG <= goal_R1).sum(dim=1).clamp_max(cumulative_RG.shape[1] - 1)
    before_R1 = torch.nn.functional.pad(cumulative_RG, (1, 0)).gather(1, group_R[:, None])
    inside_RK = weight_RGK[torch.arange(len(group_R), device=group_R.device), group_R].double()
    offset_R = (before_R1 + inside_RK.cumsum(dim=1) <= goal_R1).sum(dim=1)
    # Rounding may carry the goal just past the group's last positive weight: step back onto it.
    last_R = DRAW_GROUP - 1 - (inside_RK > 0).flip(1).int().argmax(dim=1)
    return group_R * DRAW_GROUP + torch.minimum(offset_R, last_R), total_R


def _logit_chunks(rows: HiddenRows) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, float32 logits of a chunk of rows over the valid vocabulary)."""
    unembed_VD = rows.unembed_VD[: rows.valid_vocab]
    project = _projection(rows, unembed_VD)
    excluded = [token for token in rows.excluded if token < rows.valid_vocab]
    step = _rows_at_once(4 * len(unembed_VD), rows.hidden_RD.device)
    for low in range(0, len(rows.hidden_RD), step):
        logits_RV = project(rows.hidden_RD[low : low + step])
        logits_RV[:, excluded] = EXCLUDED_LOGIT
        yield low, logits_RV


def _rows_at_once(row_bytes: int, device: torch.device) -> int:
    """Return how many rows a chunk has: on the CPU what stays in its cache, but enough for a good product."""
    most = max(1, CHUNK_BYTES // row_bytes)
    return min(most, max(CPU_CHUNK_ROWS, CPU_CHUNK_BYTES // row_bytes)) if device.type == "cpu" else most


def _projection(rows: HiddenRows, unembed_VD: Tensor) -> Callable[[Tensor], Tensor]:
    hidden_RD, whole_VD = rows.hidden_RD, rows.unembed_VD
    if hidden_RD.dtype == whole_VD.dtype == torch.float32 and len(whole_VD) == len(unembed_VD):
        return lambda chunk: product(chunk, whole_VD)  # the model's own tensor: it can stay packed
    if hidden_RD.dtype == torch.float32:
        return lambda chunk: chunk @ unembed_VD.T.to(torch.float32)
    if hidden_RD.is_cuda:
        return lambda chunk: torch.mm(chunk, unembed_VD.T.to(chunk.dtype), out_dtype=torch.float32)
    return lambda chunk: chunk.float() @ unembed_VD.T.float()
