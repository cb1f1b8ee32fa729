"""A session's forwards on the CPU in float32: matrix products, and as little as possible besides.

The numbers are those of the network's modules up to the last bits. What is spared: windows over one cached
prefix are attended together, against the cache itself instead of a copy per window; residuals are added by
the products; norms, rotations and SwiGLU make few passes over buffers that are used again; the last layer
runs for the wanted rows alone.

Shape letters: N windows, W width, T = N·W tokens, R rows, Q rows of a window, C width, H heads, K key/value
heads, J = H / K heads of a group, D head width, F inner width; G segments of S windows make a run, L its
prefix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.protocol import IntArray
from orderlens.models.small.cache import KeyCache
from orderlens.models.small.network import Layer, Transformer
from orderlens.models.small.runs import Run, find_runs, in_batches
from orderlens.models.small.windows import CachedWindows, WantedRows
from orderlens.models.torch.rotary import rotary_at

Rotary = tuple[Tensor, Tensor]
LARGE_PRODUCT = 2**15
"""Numbers of a result from which products are written where they belong, one by one."""


class Workspace:
    """Buffers by name, used again by every layer: a fresh one costs a page fault per 4 KB."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a float32 tensor without values; valid until ``name`` is taken again."""
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or len(flat) < size:
            flat = self._flat[name] = torch.empty(size)
        return flat[:size].view(shape)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The windows of one forward: the cache, runs of shared prefixes, width, angles of all tokens."""

    cache: KeyCache
    runs: list[Run]
    width: int
    rotary: Rotary


class LeanPasses:
    """The forwards of a session over a network's own weights."""

    def __init__(self, network: Transformer) -> None:
        self._network, self._config = network, network.config
        self._layers: list[Layer] = [layer for layer in network.layers if isinstance(layer, Layer)]
        self._head_weights = [_head_weights(layer) for layer in self._layers]
        self._space = Workspace()

    def batches(self, slots_N: IntArray, starts_N: IntArray, at_once: int) -> Iterator[IntArray]:
        """Yield the windows' indices in batches, those over one prefix together."""
        return in_batches(slots_N, starts_N, at_once)

    def keys(self, windows: CachedWindows) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values [N, K, W, D]; of the last layer nothing else is computed."""
        batch, x_TC = self._batch(windows)
        new: list[tuple[Tensor, Tensor]] = []
        for index in range(len(self._layers)):
            last = index == len(self._layers) - 1
            k_TKD, v_TKD = self._layer(index, x_TC, batch) if not last else self._last_keys(x_TC, batch)[1:]
            new.append((_by_window(k_TKD, batch.width), _by_window(v_TKD, batch.width)))
        return new

    def rows(self, windows: CachedWindows, wanted: WantedRows) -> Tensor:
        """Return hidden states [R, C] of the wanted rows."""
        batch, x_TC = self._batch(windows)
        for index in range(len(self._layers) - 1):
            self._layer(index, x_TC, batch)
        return self._last_rows(x_TC, batch, wanted)

    def _batch(self, windows: CachedWindows) -> tuple[_Batch, Tensor]:
        """Return the batch and its embedded tokens [T, C]."""
        positions_NW = torch.from_numpy(windows.starts_N[:, None] + np.arange(windows.width))
        cos, sin = rotary_at(positions_NW, self._config.head_width, self._config.rope_theta)
        runs = find_runs(windows.slots_N, windows.starts_N)
        rotary = (cos.view(-1, 1, cos.shape[-1]), sin.view(-1, 1, sin.shape[-1]))
        tokens_T = torch.from_numpy(windows.tokens_NW.reshape(-1))
        return _Batch(windows.cache, runs, windows.width, rotary), self._network.embedding(tokens_T)

    def _layer(self, index: int, x_TC: Tensor, batch: _Batch) -> tuple[Tensor, Tensor]:
        """Advance ``x_TC`` by one layer, in place; return its keys and values [T, K, D]."""
        layer, heads = self._layers[index], self._config.n_heads
        fused_TOD = self._heads("fused", self._normed(x_TC, layer.attention_norm), layer.attention.qkv.weight)
        turning = heads + self._config.kv_heads
        turned = self._turned("turned", fused_TOD[:, :turning], self._head_weights[index], batch.rotary)
        q_THD, k_TKD, v_TKD = turned[:, :heads], turned[:, heads:], fused_TOD[:, turning:]
        attended_TO = self._attend(index, q_THD, k_TKD, v_TKD, batch)
        x_TC.addmm_(attended_TO, layer.attention.out.weight.T)
        self._feed_forward(layer, x_TC)
        return k_TKD, v_TKD

    def _last_keys(self, x_TC: Tensor, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last layer's normalised input [T, C], keys and values [T, K, D]."""
        layer, config = self._layers[-1], self._config
        h_TC = self._normed(x_TC, layer.attention_norm)
        both_TOD = self._heads("fused", h_TC, layer.attention.qkv.weight[config.width :])
        weight = self._head_weights[-1]
        weight = None if weight is None else weight[config.n_heads :]
        k_TKD = self._turned("turned", both_TOD[:, : config.kv_heads], weight, batch.rotary)
        return h_TC, k_TKD, both_TOD[:, config.kv_heads :]

    def _last_rows(self, x_TC: Tensor, batch: _Batch, wanted: WantedRows) -> Tensor:
        """Run the last layer with all keys and only the wanted queries; return the final rows [R, C]."""
        layer, config = self._layers[-1], self._config
        h_TC, k_TKD, v_TKD = self._last_keys(x_TC, batch)
        row_R = torch.from_numpy(wanted.window_R * batch.width + wanted.offset_R)
        q_RHD = self._heads("queries", h_TC[row_R], layer.attention.qkv.weight[: config.width])
        weight = self._head_weights[-1]
        weight = None if weight is None else weight[: config.n_heads]
        angles = (batch.rotary[0][row_R], batch.rotary[1][row_R])
        q_RHD = self._turned("turned queries", q_RHD, weight, angles)
        count, most = len(x_TC) // batch.width, wanted.most
        place_R = torch.from_numpy(wanted.window_R * most + wanted.place_R)
        padded = len(row_R) < count * most
        if padded:
            q_RHD = torch.zeros(count * most, *q_RHD.shape[1:]).index_copy_(0, place_R, q_RHD)
        attended_RO = self._attend(len(self._layers) - 1, q_RHD, k_TKD, v_TKD, batch)
        x_RC = x_TC[row_R]
        x_RC.addmm_(attended_RO[place_R] if padded else attended_RO, layer.attention.out.weight.T)
        self._feed_forward(layer, x_RC)
        return self._normed(x_RC, self._network.final_norm).clone()

    def _feed_forward(self, layer: Layer, x_TC: Tensor) -> None:
        gate_up, down = layer.ffn.gate_up.weight, layer.ffn.down.weight
        h_TC, inner = self._normed(x_TC, layer.ffn_norm), down.shape[1]
        both_TF = torch.mm(h_TC, gate_up.T, out=self._space.take("inner", len(h_TC), 2 * inner))
        gate_TF = functional.silu(both_TF[:, :inner], inplace=True).mul_(both_TF[:, inner:])
        x_TC.addmm_(gate_TF, down.T)

    def _normed(self, x_TC: Tensor, norm: torch.nn.RMSNorm) -> Tensor:
        h_TC = self._space.take("normed", *x_TC.shape)
        return torch.mul(x_TC, _inverse_rms(x_TC, self._config.norm_eps), out=h_TC).mul_(norm.weight)

    def _heads(self, name: str, h_TC: Tensor, weight_OC: Tensor) -> Tensor:
        """Return the projection [T, heads, D]."""
        out = self._space.take(name, len(h_TC), len(weight_OC))
        return torch.mm(h_TC, weight_OC.T, out=out).view(len(h_TC), -1, self._config.head_width)

    def _turned(self, name: str, x_THD: Tensor, weight_HD: Tensor | None, rotary: Rotary) -> Tensor:
        """Return heads normalised (in place) and turned (in a buffer)."""
        if weight_HD is not None:
            x_THD.mul_(_inverse_rms(x_THD, self._config.norm_eps)).mul_(weight_HD)
        (cos, sin), half = rotary, self._config.head_width // 2
        a, b = x_THD[..., :half], x_THD[..., half:]
        out = self._space.take(name, *x_THD.shape)
        torch.mul(a, cos, out=out[..., :half]).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=out[..., half:]).addcmul_(a, sin)
        return out

    def _attend(self, index: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, batch: _Batch) -> Tensor:
        """Return attention outputs [N·Q, H·D] of Q queries per window over prefixes and windows."""
        count = len(k_TKD) // batch.width
        queries = len(q_THD) // count
        out = self._space.take("attended", len(q_THD), self._config.width)
        for run in batch.runs:
            asked = slice(run.first * queries, (run.first + run.windows) * queries)
            own = slice(run.first * batch.width, (run.first + run.windows) * batch.width)
            prefix = self._prefix(index, run, batch.cache)
            o_GKSJQD = self._attend_run(run, q_THD[asked], k_TKD[own], v_TKD[own], prefix)
            out[asked].view(o_GKSJQD.permute(0, 2, 4, 1, 3, 5).shape).copy_(
                o_GKSJQD.permute(0, 2, 4, 1, 3, 5)
            )
        return out

    def _prefix(self, index: int, run: Run, cache: KeyCache) -> tuple[Tensor, Tensor] | None:
        """Return a view of the run's cached keys and values [G·K, L, D]."""
        if not run.start:
            return None
        part = (slice(run.slot, run.slot + run.groups), slice(None), slice(run.start))
        return cache.keys[index][part].flatten(0, 1), cache.values[index][part].flatten(0, 1)

    def _attend_run(
        self, run: Run, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, prefix: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return attention outputs [G, K, S, J, Q, D]."""
        heads, kv_heads, d = self._config.n_heads, self._config.kv_heads, self._config.head_width
        groups, size, many = run.groups, run.size, run.groups * kv_heads
        q = q_THD.view(groups, size, -1, kv_heads, heads // kv_heads, d).permute(0, 3, 1, 4, 2, 5)
        q = self._space.take("q", *q.shape).copy_(q)
        k, v = (x.view(groups, size, -1, kv_heads, d).permute(0, 3, 1, 2, 4) for x in (k_TKD, v_TKD))
        k, v = self._space.take("k", *k.shape).copy_(k), self._space.take("v", *v.shape).copy_(v)
        q_alone, k_alone, v_alone = (x.view(many * size, -1, d) for x in (q, k, v))
        width = k_alone.shape[1]
        scores = self._space.take("scores", q.numel() // d, run.start + width)
        alone, together = (scores.view(n, -1, run.start + width) for n in (many * size, many))
        self._scores(alone[..., run.start :], q_alone, k_alone)
        if prefix is not None:
            self._scores(together[..., : run.start], q.view(many, -1, d), prefix[0])
        p = torch.softmax(scores, dim=-1)
        alone, together = p.view(alone.shape), p.view(together.shape)
        o = torch.bmm(alone[..., run.start :], v_alone, out=self._space.take("o", *q_alone.shape))
        if prefix is not None:
            o.view(many, -1, d).baddbmm_(together[..., : run.start], prefix[1])
        return o.view(q.shape)

    def _scores(self, into_BQL: Tensor, q_BQD: Tensor, k_BLD: Tensor) -> None:
        """Write q · kᵀ / √D into a part of the scores.

        torch makes one call of many products only where the result is contiguous: small ones go through a
        buffer.
        """
        large = into_BQL[0].numel() >= LARGE_PRODUCT
        out = into_BQL if large else self._space.take("products", *into_BQL.shape)
        out.baddbmm_(q_BQD, k_BLD.transpose(1, 2), beta=0, alpha=self._config.head_width**-0.5)
        if not large:
            into_BQL.copy_(out)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / √(mean x² + eps) over the last dimension, which stays."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.square_().add_(x.shape[-1] * eps).rsqrt_().mul_(math.sqrt(x.shape[-1]))


def _head_weights(layer: Layer) -> Tensor | None:
    """Return the norms' weights of all query and key heads [H + K, D]; None without norms."""
    own = layer.attention
    if not (isinstance(own.q_norm, torch.nn.RMSNorm) and isinstance(own.k_norm, torch.nn.RMSNorm)):
        return None
    q_weight_D, k_weight_D = own.q_norm.weight, own.k_norm.weight
    return torch.cat((q_weight_D.expand(own.n_heads, -1), k_weight_D.expand(own.kv_heads, -1)))


def _by_window(x_TKD: Tensor, width: int) -> Tensor:
    """Return a copy [N, K, W, D]."""
    return x_TKD.reshape(-1, width, *x_TKD.shape[1:]).transpose(1, 2).clone()
