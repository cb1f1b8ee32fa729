"""Full attention: every forward sees the whole canvas, so there is nothing to cache.

A network that maps canvases to hidden states uses the same engine as block-causal networks, with an empty
page pool: batching, out-of-memory handling and CUDA graphs. Its session caches nothing.

Shape letters: N states, W canvas, T = N·W tokens, R wanted rows, C model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.graphs import MAX_GRAPH_TOKENS
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.session import RowReader
from orderlens.models.engine.transfer import Windows, pack
from orderlens.models.protocol import HiddenRows, IntArray, NextTokens, StateBatch


class CanvasNetwork(Protocol):
    """The interface of a full-attention network.

    Attributes:
        device: the computing device.
        dtype: dtype of its activations.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def canvas(self, tokens_NW: Tensor) -> Tensor:
        """Return hidden states [N, W, C] of whole canvases (int32 ids), normalised for the output matrix.

        On CUDA it is recorded as a graph, so it must not synchronise with the host.
        """


@dataclass(frozen=True, slots=True)
class NoCache:
    """The shape of a cache that holds nothing."""

    max_positions: int
    n_layers: int = 0
    n_kv_heads: int = 1
    head_width: int = 1


class UncachedNetwork:
    """Adapts a canvas network to the engine's protocol."""

    def __init__(self, network: CanvasNetwork, recorded: bool = True) -> None:
        self.network = network
        self.gathers = not recorded  # the engine records networks that do not gather keys

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def splits(self, n_windows: int, longest_start: int) -> int:
        """There is no prefix to split."""
        del n_windows, longest_start
        return 1

    @torch.no_grad()
    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        del pool
        return self.network.canvas(windows.tokens).flatten(0, 1)

    def store(self, windows: Windows, pool: PagePool) -> None:
        """Refuse: nothing is cached."""
        raise NotImplementedError("full attention caches nothing")


def canvas_engine(
    network: CanvasNetwork,
    max_positions: int,
    *,
    recorded: bool = True,
    max_graph_tokens: int = MAX_GRAPH_TOKENS,
) -> ForwardEngine:
    """Return the engine of a full-attention network.

    Args:
        network: the network.
        max_positions: longest canvas.
        recorded: record its forwards as CUDA graphs.
        max_graph_tokens: larger forwards are not recorded and hence not padded to a bucket.
    """
    return ForwardEngine(UncachedNetwork(network, recorded), NoCache(max_positions), max_graph_tokens)


class CanvasSession:
    """The Session protocol without a cache: states are whole canvases."""

    def __init__(
        self,
        engine: ForwardEngine,
        unembed_VC: Tensor,
        excluded: tuple[int, ...],
        valid_vocab: int,
        *,
        shifted: bool = False,
    ) -> None:
        """Make a session.

        Args:
            engine: from ``canvas_engine``.
            unembed_VC: the output matrix.
            excluded: ids that can never be revealed.
            valid_vocab: rows of the output matrix from this index on are padding.
            shifted: the network's row i − 1 predicts position i (and row 0 also predicts position 0).
        """
        self._reader = RowReader(engine, unembed_VC, excluded, valid_vocab)
        self._shifted, self._width = shifted, 0

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Keep nothing."""

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Keep nothing."""

    def keep(self, slots: IntArray) -> None:
        """Keep nothing."""

    def evaluate(self, states: StateBatch) -> HiddenRows:
        if states.starts_N.any():
            raise ValueError("under full attention a state is a whole canvas and starts at 0")
        count, width = states.tokens_NW.shape
        self._width = width
        self._reader.check_length(width)
        self._reader.check_tokens(states.tokens_NW)
        zeros = np.zeros(count, np.int64)
        packed = pack(zeros, zeros, np.full(count, width), states.tokens_NW)
        offset_R = np.maximum(states.row_offset_R - 1, 0) if self._shifted else states.row_offset_R
        return self._reader.read(packed, states.row_state_R, offset_R)

    @property
    def can_speculate(self) -> bool:
        """Whether ``speculate`` saves time."""
        return self._reader.can_speculate

    def speculate(self, more: NextTokens) -> HiddenRows | None:
        """Evaluate the last states again, each with one more token that is known on the device only."""
        if not self._shifted:
            return self._reader.rerun(more)
        inside_R = more.row_R % self._width > 0
        return self._reader.rerun(more, more.row_R - inside_R.to(more.row_R.dtype))
