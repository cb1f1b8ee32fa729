"""The torch head: hidden rows to position statistics without a [rows × vocabulary] float64 tensor.

Rows go to the fused CUDA kernels (``kernels.head``) where they apply. Elsewhere they are processed in chunks
whose float32 logits fit in ``CHUNK_BYTES``; each chunk is reduced to a few numbers per row. Operands
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
from orderlens.models.engine.layer_parts import packed_linear
from orderlens.models.engine.transfer import start_copy_to_host, to_device
from orderlens.models.protocol import FloatArray, Head, HiddenRows, IntArray
from orderlens.rules.stats import DrawInputs, DrawStats, PositionStats, RowStats, require_finite_rows

CHUNK_BYTES = 64 * 2**20
CPU_CHUNK_BYTES, CPU_CHUNK_ROWS = 4 * 2**20, 64
DRAW_GROUP = 512
"""Vocabulary entries per group. A draw is located in two steps: its group, then its place in the group."""
EXCLUDED_LOGIT = -1e30
"""Finite replacement for −inf, so that p·log p is 0 and not NaN."""


def take_rows(rows: HiddenRows, index_R: IntArray) -> HiddenRows:
    """Return the rows at ``index_R``."""
    index = torch.as_tensor(index_R, device=rows.hidden_RD.device)
    return replace(rows, hidden_RD=rows.hidden_RD[index])


def blank_rows(rows: HiddenRows, count: int) -> HiddenRows:
    """Return ``count`` uninitialised rows of the same kind."""
    return replace(rows, hidden_RD=rows.hidden_RD.new_empty(count, rows.hidden_RD.shape[1]))


def put_rows(into: HiddenRows, index_R: IntArray, rows: HiddenRows) -> None:
    """Write ``rows`` into the places ``index_R`` of rows made by ``blank_rows``."""
    into.hidden_RD[torch.as_tensor(index_R, device=into.hidden_RD.device)] = rows.hidden_RD


def divergence(rows: HiddenRows, earlier: HiddenRows) -> FloatArray:
    """Return KL(rows ‖ earlier) of each pair of rows in nats.

    Both distributions are computed from hidden states, chunk by chunk in plain torch, even where the fused
    kernels compute the statistics. This costs two more products with the output matrix and little memory.
    """
    found = [torch.empty(0, dtype=torch.float64)]
    for (_, now_RV), (_, before_RV) in zip(_logit_chunks(rows), _logit_chunks(earlier), strict=True):
        log_p_RV, log_q_RV = torch.log_softmax(now_RV, dim=1), torch.log_softmax(before_RV, dim=1)
        kl_R = (log_p_RV.exp() * (log_p_RV - log_q_RV)).sum(dim=1, dtype=torch.float64)
        found.append(kl_R.clamp_min(0).cpu())
    kl: FloatArray = torch.cat(found).numpy()
    return kl


def start_reduction(
    rows: HiddenRows,
    eos_ids: Iterable[int],
    targets_R: IntArray | None = None,
    draw_inputs: DrawInputs | None = None,
) -> PendingDeviceStats:
    """Start reducing the rows; the result waits for the numbers to arrive on the host.

    A target that is excluded, or padding of the vocabulary, has log-probability −inf.
    """
    device, eos = rows.hidden_RD.device, sorted(eos_ids)
    targets, impossible_R = None, None
    if targets_R is not None:
        impossible_R = (targets_R >= rows.valid_vocab) | np.isin(targets_R, rows.excluded)
        targets = to_device(np.where(impossible_R, 0, targets_R), device)
    draw = None if draw_inputs is None else _draw_on(device, draw_inputs)
    found = _head(rows, draw).reduce(rows, eos, targets, draw)
    return PendingDeviceStats(found, start_copy_to_host(*found), impossible_R)


def _draw_on(device: torch.device, given: DrawInputs) -> Draw:
    heat = given.temperature
    if isinstance(heat, np.ndarray):
        return Draw(to_device(heat.astype(np.float32), device), to_device(given.uniforms_R, device))
    return Draw(heat, to_device(given.uniforms_R, device))


@dataclass(frozen=True, slots=True)
class PendingDeviceStats:
    """Statistics that are being copied to the host.

    Attributes:
        found: the head's tensors, as ``Head`` describes them.
        arrive: waits for the copy.
        impossible_R: whether each target has probability zero; None without targets, whose log-probability is
            the last column.
    """

    found: tuple[Tensor, ...]
    arrive: Callable[[], Sequence[NDArray[Any]]]
    impossible_R: NDArray[np.bool_] | None

    def __call__(self) -> RowStats:
        """Wait for the copy and return the statistics."""
        return _unpacked(self.arrive(), self.impossible_R)


def _unpacked(found: Sequence[NDArray[Any]], impossible_R: NDArray[np.bool_] | None) -> RowStats:
    token_R, values_RC = found[0].astype(np.int64), found[1].astype(np.float64)
    require_finite_rows(~np.isfinite(values_RC[:, 0]))
    stats = PositionStats(token_R, values_RC[:, 1], values_RC[:, 2], values_RC[:, 3], values_RC[:, 4])
    draws = None
    if len(found) > 2:
        draws = DrawStats(stats, found[2].astype(np.int64), found[3][:, 0], found[3][:, 1])
    target_R = None if impossible_R is None else np.where(impossible_R, -np.inf, values_RC[:, 5])
    return RowStats(stats, target_R, draws)


def _head(rows: HiddenRows, draw: Draw | None = None) -> Head:
    if rows.head is not None:
        return rows.head
    one_temperature = draw is None or not isinstance(draw.temperature, Tensor)
    if rows.unembed_VD is None or not one_temperature or not can_fuse(rows.hidden_RD, rows.unembed_VD):
        return _CHUNKED
    return _FUSED


class ChunkedHead:
    """The Head protocol in plain torch, on any device and in any dtype."""

    def reduce(
        self, rows: HiddenRows, eos_ids: Sequence[int], targets_R: Tensor | None, draw: Draw | None = None
    ) -> tuple[Tensor, ...]:
        device = rows.hidden_RD.device
        eos = torch.tensor(eos_ids, dtype=torch.long, device=device)
        no_rows = _no_rows(5 if targets_R is None else 6, device)
        parts: list[tuple[Tensor, ...]] = [no_rows if draw else no_rows[:2]]
        for low, logits_RV in _logit_chunks(rows):
            here = slice(low, low + len(logits_RV))
            wanted = None if targets_R is None else targets_R[here]
            drawn = _draw(logits_RV, draw, here) if draw else ()
            parts.append((*_reduce(logits_RV, eos, wanted), *drawn))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _no_rows(n_columns: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the results for zero rows."""
    no_tokens = torch.empty(0, dtype=torch.long, device=device)
    no_logprobs = torch.empty(0, 2, dtype=torch.float64, device=device)
    return no_tokens, torch.empty(0, n_columns, device=device), no_tokens, no_logprobs


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

    The largest logit is subtracted first, so that log-probabilities near 0 keep their digits and one
    exponential per entry serves both the normaliser and the entropy. The logits are overwritten.
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
    """Return the maximum and its lowest index (torch does not specify the index among equals)."""
    if logits_RV.device.type == "cpu":
        token_R = torch.from_numpy(logits_RV.numpy().argmax(axis=1))
        return logits_RV.gather(1, token_R[:, None])[:, 0], token_R
    top_R = logits_RV.amax(dim=1)
    index_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    token_R = torch.where(logits_RV >= top_R[:, None], index_V, logits_RV.shape[1]).amin(dim=1)
    return top_R, token_R.clamp_max(logits_RV.shape[1] - 1)


def _draw(logits_RV: Tensor, draw: Draw, here: slice) -> tuple[Tensor, Tensor]:
    """Return one token per row and its log-probabilities [R, 2] at temperature 1 and at the draw's."""
    heat = draw.temperature
    below_RV = logits_RV - logits_RV.amax(dim=1, keepdim=True)
    log_mass_R = torch.exp(below_RV).sum(dim=1).log()  # as in ``_reduce``, so that top tokens agree
    scaled_RV = below_RV / (heat[here, None] if isinstance(heat, Tensor) else heat)
    token_R, mass_R = _invert(torch.exp(scaled_RV), draw.uniforms_R[here])
    picked_R = below_RV.gather(1, token_R[:, None])[:, 0] - log_mass_R
    tempered_R = scaled_RV.gather(1, token_R[:, None])[:, 0].double() - mass_R.log()
    return token_R, torch.stack([picked_R.double(), tempered_R], dim=1)


def _invert(weight_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token at which the cumulative weight exceeds uniform × total, and the total, per row.

    Group sums are added in float64 ([R, V/512]); only the group that contains the draw is expanded.
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
    # Rounding can move the goal just past the group's last positive weight: use that weight then.
    last_R = DRAW_GROUP - 1 - (inside_RK > 0).flip(1).int().argmax(dim=1)
    return group_R * DRAW_GROUP + torch.minimum(offset_R, last_R), total_R


def _logit_chunks(rows: HiddenRows) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, float32 logits of a chunk of rows over the valid vocabulary)."""
    project = _projection(rows)
    excluded = [token for token in rows.excluded if token < rows.valid_vocab]
    step = _rows_per_chunk(4 * rows.valid_vocab, rows.hidden_RD.device)
    for low in range(0, len(rows.hidden_RD), step):
        logits_RV = project(rows.hidden_RD[low : low + step])
        logits_RV[:, excluded] = EXCLUDED_LOGIT
        yield low, logits_RV


def _rows_per_chunk(row_bytes: int, device: torch.device) -> int:
    """Return the rows per chunk: on a CPU what fits in its cache, but enough for an efficient product."""
    most = max(1, CHUNK_BYTES // row_bytes)
    return min(most, max(CPU_CHUNK_ROWS, CPU_CHUNK_BYTES // row_bytes)) if device.type == "cpu" else most


def _projection(rows: HiddenRows) -> Callable[[Tensor], Tensor]:
    """Return a function from a chunk to its logits, in a tensor that the caller may overwrite."""
    hidden_RD, padded_VD = rows.hidden_RD, rows.unembed_VD
    if padded_VD is None:
        return lambda chunk: chunk[:, : rows.valid_vocab].to(torch.float32, copy=True)
    unembed_VD = padded_VD[: rows.valid_vocab]
    if hidden_RD.dtype == padded_VD.dtype == torch.float32 and len(padded_VD) == len(unembed_VD):
        return lambda chunk: packed_linear(chunk, padded_VD)  # the model's tensor itself: it can stay packed
    if hidden_RD.dtype == torch.float32:
        return lambda chunk: chunk @ unembed_VD.T.to(torch.float32)
    if hidden_RD.is_cuda:
        return lambda chunk: torch.mm(chunk, unembed_VD.T.to(chunk.dtype), out_dtype=torch.float32)
    return lambda chunk: chunk.float() @ unembed_VD.T.float()
