"""Small random models of the built-in family, in memory or as a folder. The functions need torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from orderlens.models.files.tokenizer import FastTokenizer
    from orderlens.models.small.model import TransformerModel
    from orderlens.models.small.network import Transformer

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
