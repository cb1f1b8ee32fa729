"""Models for tests: a stub with given logits, and small random models of the built-in family.

The stub has an obvious implementation of the model protocol. The functions for small models need torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from orderlens.common.grid import block_edges
from orderlens.models.protocol import (
    Anchor,
    Attention,
    CleanTokens,
    FloatArray,
    IntArray,
    LogProbRows,
    StateBatch,
    Tokenizer,
    model_repr,
    token_ids,
)

if TYPE_CHECKING:
    from orderlens.models.files.tokenizer import FastTokenizer
    from orderlens.models.small.model import TransformerModel
    from orderlens.models.small.network import Transformer


Rule: TypeAlias = Callable[[IntArray, int], ArrayLike]
"""(tokens visible to the position, the mask id where hidden; the position) → logits [V − 1]."""


class NumberTokenizer:
    """Token ids written as numbers: ``"3 1 4"``."""

    def encode(self, text: str) -> list[int]:
        """Return the numbers in ``text``."""
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the ids with a space between them."""
        return " ".join(str(int(index)) for index in ids)


class StubModel:
    """The Model protocol with given logits; the mask is the last id and is never revealed."""

    precision: Literal["float64"] = "float64"
    max_positions = 4096

    def __init__(
        self,
        logits: ArrayLike | Rule,
        *,
        vocab_size: int | None = None,
        block_size: int = 8,
        attention: Attention = "block-causal",
        eos_ids: Collection[int] = (),
        special_ids: Collection[int] = (),
        anchor: Anchor = "zero",
        tokenizer: Tokenizer | None = None,
        name: str = "stub",
        digest: str | None = None,
    ) -> None:
        """Make a model.

        Args:
            logits: one row [V − 1] for every position, rows [P, V − 1] of which position i takes row i mod P,
                or a function of the visible tokens and the position that returns a row [V − 1].
            vocab_size: V, the mask included; needed with a function only.
            block_size: tokens per block.
            attention: what a position sees: blocks up to its own, or the whole canvas.
            eos_ids: ids that end a text.
            special_ids: ids that are neither content nor EOS.
            anchor: where the block grid starts.
            tokenizer: numbers between spaces by default.
            name: the model's name; ``load_model`` cannot load it again.
            digest: identifies the logits. A function cannot be hashed: without a digest its runs can only be
                kept in memory.
        """
        self._rule, table_PV = _rule(logits)
        size = vocab_size if table_PV is None else table_PV.shape[1] + 1
        if size is None:
            raise ValueError("StubModel needs vocab_size when logits are a function")
        self.vocab_size = size
        self.mask_id = self.vocab_size - 1
        self.block_size, self.attention, self.anchor = block_size, attention, anchor
        self.eos_ids, self.special_ids = frozenset(eos_ids), frozenset(special_ids)
        self.tokenizer: Tokenizer = tokenizer or NumberTokenizer()
        self.name = name
        self.digest = _digest(table_PV) if digest is None else digest

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        ids_L = token_ids(tokens, self.vocab_size)
        blocks = block_edges(len(ids_L), self.block_size, grid_offset)
        edges = [(0, len(ids_L))] if self.attention == "full" else blocks
        rows = [self.row(ids_L[:stop], place) for start, stop in edges for place in range(start, stop)]
        return np.stack(rows) if rows else np.empty((0, self.vocab_size))

    def row(self, visible: IntArray, position: int) -> FloatArray:
        """Return the log-probabilities [V] at one position that sees ``visible``."""
        logits = np.append(np.asarray(self._rule(visible, position), np.float64), -np.inf)
        if logits.shape != (self.vocab_size,):
            raise ValueError(f"position {position} has {len(logits) - 1} logits, not {self.mask_id}")
        shifted = logits - logits.max()
        log_p: FloatArray = shifted - np.log(np.exp(shifted).sum())
        return log_p

    def __repr__(self) -> str:
        return model_repr(self)

    def with_block_size(self, block_size: int) -> StubModel:
        return StubModel(
            self._rule,
            vocab_size=self.vocab_size,
            block_size=block_size,
            attention=self.attention,
            eos_ids=self.eos_ids,
            special_ids=self.special_ids,
            anchor=self.anchor,
            tokenizer=self.tokenizer,
            name=self.name,
            digest=self.digest,
        )

    def open_session(self) -> StubSession:
        return StubSession(self)


class StubSession(CleanTokens):
    """The Session protocol over the clean tokens of each slot."""

    def __init__(self, model: StubModel) -> None:
        super().__init__()
        self._model = model

    def evaluate(self, states: StateBatch) -> LogProbRows:
        seen = [
            np.concatenate([self._slots[slot][:start] if start else tokens[:0], tokens])
            for slot, start, tokens in zip(
                states.slots_N.tolist(), states.starts_N.tolist(), states.tokens_NW, strict=True
            )
        ]
        rows = [
            self._model.row(seen[state], int(states.starts_N[state]) + offset)
            for state, offset in zip(states.row_state_R.tolist(), states.row_offset_R.tolist(), strict=True)
        ]
        return LogProbRows(np.stack(rows) if rows else np.empty((0, self._model.vocab_size)))


def _digest(table_PV: FloatArray | None) -> str:
    """Return a digest of given rows; empty for a function."""
    if table_PV is None:
        return ""
    given = repr(table_PV.shape).encode() + table_PV.tobytes()
    return hashlib.blake2b(given, digest_size=16).hexdigest()


def _rule(logits: ArrayLike | Rule) -> tuple[Rule, FloatArray | None]:
    """Return ``logits`` as a function and, for given rows, as a table [P, V − 1]."""
    if callable(logits):
        return logits, None
    table_PV = np.atleast_2d(np.asarray(logits, np.float64))
    return lambda _, position: table_PV[position % len(table_PV)], table_PV


_SHAPE: dict[str, Any] = {
    "n_layers": 3,
    "width": 32,
    "n_heads": 2,
    "ffn_width": 48,
    "block_size": 8,
    "max_positions": 512,
}


def small_model(
    attention: Literal["block-causal", "full"] = "block-causal", block_size: int = 8, seed: int = 0
) -> TransformerModel:
    """Return a random model over 50 ids with large weights, so that conditionals are peaked."""
    from orderlens.models.files.tokenizer import CharacterTokenizer
    from orderlens.models.small.model import TransformerModel

    network = _network(seed, vocab_size=50, attention=attention, block_size=block_size)
    return TransformerModel(network, CharacterTokenizer(), name=f"random-{attention}")


def write_small(folder: Path, *, seed: int = 0, int8: bool = False, **shape: Any) -> None:
    """Write a folder that ``load_model`` reads: random weights and a tokenizer of single bytes.

    Args:
        folder: created if it does not exist.
        seed: of the weights.
        int8: store the weights as int8 with a scale per row.
        shape: fields of ``TransformerConfig``, e.g. ``attention="full"``; ``causal`` gives an evaluator.
    """
    from orderlens.models.small.folder import save_folder

    tokenizer = byte_tokenizer()
    save_folder(folder, _network(seed, vocab_size=tokenizer.vocab_size, **shape), tokenizer, int8=int8)


def byte_tokenizer() -> FastTokenizer:
    """Return a tokenizer with the special tokens of the bundled one and one token per byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from orderlens.models.files.tokenizer import FastTokenizer
    from orderlens.training.data import SPECIAL_TOKENS

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    return FastTokenizer(tokenizer, text_only=True)


def _network(seed: int, **shape: Any) -> Transformer:
    import torch

    from orderlens.models.small.network import Transformer, TransformerConfig

    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        network = Transformer(TransformerConfig(**{**_SHAPE, **shape}))
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network
