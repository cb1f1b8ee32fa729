"""From a GGUF file of the ``llama`` architecture to our transformer, its tokenizer and its chat template.

The file stores rotary pairs next to each other; our rotary encoding pairs the two halves of a head, so the
rows of queries and keys are reordered. Does not depend on adapters, masks or the origin of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.errors import MissingPackageError, ModelLoadError, one_line
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.small.network import Transformer, TransformerConfig, meta_network

FloatArray = NDArray[np.float32]
CONTROL = 3
"""The token type of control tokens, which have no text."""


class GgufFile:
    """A GGUF file, read by the package ``gguf``; tensors are read from a memory map on request.

    Attributes:
        metadata: the key/value pairs as plain Python values.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ModelLoadError(f"{path}: no such file")
        try:
            reader = _open(path)
            self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        except (ValueError, IndexError, KeyError) as error:
            raise ModelLoadError(
                f"{path}: not a GGUF file, or damaged ({one_line(error)}); fetch it again"
            ) from None
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def tensor(self, name: str) -> FloatArray:
        """Return one tensor as float32 in its shape."""
        from gguf.quants import dequantize

        found = self._tensors.get(name)
        if found is None:
            raise ModelLoadError(f"{self.path}: the tensor '{name}' is missing; fetch the file again")
        return np.array(dequantize(found.data, found.tensor_type), np.float32)


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingPackageError("smol needs gguf; pip install 'orderlens[torch]'") from error

    class Reader(GGUFReader):  # type: ignore[misc]
        """Slices a plain array instead of a memory map, whose slices take three times as long."""

        @property
        def data(self) -> NDArray[np.uint8]:
            return self._plain

        @data.setter
        def data(self, mapped: NDArray[np.uint8]) -> None:
            self._plain = mapped.view(np.ndarray)

    return Reader(path)


def read_shape(
    metadata: Mapping[str, Any], attention: Literal["block-causal", "causal"], **ids: int
) -> TransformerConfig:
    """Return the network's shape; ``ids`` are settings that the file does not contain (mask, block …)."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelLoadError(f"the GGUF file holds a '{architecture}' model; expected 'llama'")
    try:
        return TransformerConfig(
            vocab_size=len(metadata["tokenizer.ggml.tokens"]),
            n_layers=int(metadata["llama.block_count"]),
            width=int(metadata["llama.embedding_length"]),
            n_heads=int(metadata["llama.attention.head_count"]),
            n_kv_heads=int(metadata["llama.attention.head_count_kv"]),
            ffn_width=int(metadata["llama.feed_forward_length"]),
            max_positions=int(metadata["llama.context_length"]),
            rope_theta=float(metadata["llama.rope.freq_base"]),
            norm_eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
            qk_norm=False,
            attention=attention,
            **ids,
        )
    except KeyError as error:
        raise ModelLoadError(f"the GGUF file lacks the key {error}") from None


def read_network(file: GgufFile, config: TransformerConfig) -> Transformer:
    """Return the float32 network on the CPU."""
    network = meta_network(config)
    state = network_state(file, config)
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    wrong = [name for name in wanted if tuple(state[name].shape) != wanted[name]]
    if wrong:
        raise ModelLoadError(
            f"{file.path}: '{wrong[0]}' is {tuple(state[wrong[0]].shape)}, expected {wanted[wrong[0]]}"
        )
    network.load_state_dict(state, assign=True)
    return network.requires_grad_(False).eval()


def network_state(file: GgufFile, config: TransformerConfig) -> dict[str, Tensor]:
    """Return the weights under our names."""
    state = {
        "embedding.weight": file.tensor("token_embd.weight"),
        "final_norm.weight": file.tensor("output_norm.weight"),
    }
    for index in range(config.n_layers):
        theirs, ours = f"blk.{index}.", f"layers.{index}."
        q = pairs_to_halves(file.tensor(f"{theirs}attn_q.weight"), config.n_heads)
        k = pairs_to_halves(file.tensor(f"{theirs}attn_k.weight"), config.kv_heads)
        v = file.tensor(f"{theirs}attn_v.weight")
        gate, up = (file.tensor(f"{theirs}ffn_{name}.weight") for name in ("gate", "up"))
        state |= {
            f"{ours}attention_norm.weight": file.tensor(f"{theirs}attn_norm.weight"),
            f"{ours}attention.qkv.weight": np.concatenate((q, k, v)),
            f"{ours}attention.out.weight": file.tensor(f"{theirs}attn_output.weight"),
            f"{ours}ffn_norm.weight": file.tensor(f"{theirs}ffn_norm.weight"),
            f"{ours}ffn.gate_up.weight": np.concatenate((gate, up)),
            f"{ours}ffn.down.weight": file.tensor(f"{theirs}ffn_down.weight"),
        }
    return {name: torch.from_numpy(array) for name, array in state.items()}


def pairs_to_halves(weight_RC: FloatArray, heads: int) -> FloatArray:
    """Reorder each head's rows from pairs (a0 b0 a1 b1 …) to halves (a0 a1 … b0 b1 …)."""
    rows, width = weight_RC.shape
    pairs = weight_RC.reshape(heads, rows // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, width)


def read_tokenizer(metadata: Mapping[str, Any]) -> FastTokenizer:
    """Return the file's byte-level BPE; digits are split off before the usual split into words."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise MissingPackageError("this model needs tokenizers; pip install 'orderlens[torch]'") from error
    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ModelLoadError(f"the GGUF file's tokenizer is {kind}; supported is ('gpt2', 'smollm')")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return FastTokenizer(tokenizer)
