"""Setting of the benchmark: the LLaDA-8B shape with random weights, and the two bounds of the device."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from llada2_bench.setting import Bench

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.decoder.weights import random_weights
from orderlens.models.families.llada import DIALECT, LLADA_8B
from orderlens.models.files.roles import TokenRoles
from orderlens.models.protocol import StateBatch

TINY = replace(
    LLADA_8B, vocab_size=512, hidden_size=64, n_layers=3, ffn_width=96, n_heads=2, n_kv_heads=2, head_width=32
)
"""For smoke runs without a GPU."""
PROMPT, NEW = 32, 128


@dataclass
class DenseBench(Bench):
    """One run over a Llama-like model."""

    config: DecoderConfig
    _model: DecoderModel | None = None
    _peak: float | None = None

    @property
    def model(self) -> DecoderModel:
        """The model with random weights, built on the device at first use."""
        if self._model is None:
            began = time.perf_counter()
            weights = random_weights(self.config, self.device, self.dtype)
            vocab = self.config.vocab_size
            roles = TokenRoles(vocab - 128, frozenset({vocab - 383}), frozenset(), vocab)
            self._model = DecoderModel(weights, self.config, roles, DIALECT, name="random")
            self.sync()
            took = time.perf_counter() - began
            print(f"random weights: {self.config.n_parameters / 1e9:.2f} B in {took:.1f} s", flush=True)
        return self._model

    @property
    def peak(self) -> float:
        """FLOP/s of a large matrix product in the model's dtype, on random data, in this process."""
        if self._peak is None:
            size = 8192 if self.cuda else 256
            a, b = (torch.randn(size, size, device=self.device, dtype=self.dtype) for _ in range(2))
            self._peak = 2 * size**3 / self.time(lambda: torch.mm(a, b))
        return self._peak

    @property
    def read_values(self) -> int:
        """Number of weights that a step must read: all except the embedding, of which it reads a few rows."""
        return self.config.n_parameters - self.config.vocab_size * self.config.hidden_size

    def flops(self, tokens: int, width: int, rows: int) -> float:
        """Return the operations of a forward of ``tokens`` in canvases of ``width`` + head on ``rows``."""
        c = self.config
        matrices = c.n_layers * c.hidden_size * (c.qkv_width + c.n_heads * c.head_width + 3 * c.ffn_width)
        attention = 2 * c.n_layers * c.n_heads * c.head_width * width
        return 2.0 * tokens * (matrices + attention) + 2.0 * rows * c.vocab_size * c.hidden_size

    def states(self, batch: int, width: int = PROMPT + NEW) -> StateBatch:
        """Return canvases halfway through their first block: 16 of 32 and all later positions masked."""
        rng = np.random.default_rng(2)
        tokens = rng.integers(0, self.model.mask_id, (batch, width))
        block = slice(min(PROMPT, width // 2), min(PROMPT + 32, width))
        wanted = np.zeros((batch, width), bool)
        wanted[:, block][:, ::2] = True
        tokens[wanted] = self.model.mask_id
        tokens[:, block.stop :] = self.model.mask_id
        state, offset = np.nonzero(wanted)
        return StateBatch(np.arange(batch), np.zeros(batch, np.int64), tokens, state, offset)
