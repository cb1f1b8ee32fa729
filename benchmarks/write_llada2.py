"""Write a LLaDA-2.x checkpoint with random weights in the published layout, and texts for it.

For runs of the whole tool on the real mini shape (32.5 GB, seconds on a GPU) without a published checkpoint:
such runs include loading, tokenizing and detokenizing. One file per layer; several are filled in parallel
from the device's random numbers. From the repository's root:

    python benchmarks/write_llada2.py FOLDER                      checkpoint, and FOLDER/texts.jsonl
    python benchmarks/write_llada2.py FOLDER --tiny --device cpu  the same layout, small (smoke run)
    orderlens replicate --model FOLDER --data FOLDER/texts.jsonl --preset full --out RUN
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "eos_token_id": 500,
    "pad_token_id": 500,
    "mask_token_id": 503,
}
MINI = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "vocab_size": 157184,
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "router_dtype": "fp32",
    "rms_norm_eps": 1e-6,
    "rope_theta": 600000,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 156892,
    "pad_token_id": 156892,
    "mask_token_id": 156895,
}
"""The published mini shape and its special tokens."""
STD = 0.02
SYLLABLES = ["".join(pair) for pair in product("bdfghklmnprstvwz", "aeiou")]
Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: Mapping[str, Any], index: int) -> Shapes:
    """Return the shapes of one layer's tensors, by published name."""
    width, head, kv = config["hidden_size"], config["head_dim"], config["num_key_value_heads"]
    heads, prefix = config["num_attention_heads"], f"model.layers.{index}."
    shapes: Shapes = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "attention.query_key_value.weight": ((heads + 2 * kv) * head, width),
        "attention.query_layernorm.weight": (head,),
        "attention.key_layernorm.weight": (head,),
        "attention.dense.weight": (width, heads * head),
    }
    if index < config["first_k_dense_replace"]:
        shapes |= mlp_shapes("mlp.", width, config["intermediate_size"])
    else:
        shapes["mlp.gate.weight"] = (config["num_experts"], width)
        shapes["mlp.gate.expert_bias"] = (config["num_experts"],)
        for expert in range(config["num_experts"]):
            shapes |= mlp_shapes(f"mlp.experts.{expert}.", width, config["moe_intermediate_size"])
        shared = config["num_shared_experts"] * config["moe_intermediate_size"]
        shapes |= mlp_shapes("mlp.shared_experts.", width, shared)
    return {prefix + name: shape for name, shape in shapes.items()}


def mlp_shapes(prefix: str, width: int, inner: int) -> Shapes:
    names = [prefix + f"{kind}_proj.weight" for kind in ("gate", "up", "down")]
    return dict(zip(names, ((inner, width), (inner, width), (width, inner)), strict=True))


def write_shard(path: Path, shapes: Shapes, device: torch.device, seed: int) -> int:
    """Write tensors of normal numbers (norms near 1) as one safetensors file; return its bytes.

    All matrices come from one sequence of random numbers, split at the header's offsets.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    kinds = {name: "F32" if name.endswith("expert_bias") else "BF16" for name in shapes}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = prod(shape) * (4 if kinds[name] == "F32" else 2)
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in runs(shapes):
            values = torch.empty(sum(prod(shapes[name]) for name in part), device=device)
            values.normal_(0, STD, generator=generator)
            if part[0].endswith("norm.weight"):
                values += 1
            if kinds[part[0]] == "BF16":
                values = values.to(torch.bfloat16)
            file.write(memoryview(values.cpu().view(torch.uint8).numpy()))
    return 8 + len(text) + at


def runs(shapes: Shapes, most: int = 2**27) -> Iterator[list[str]]:
    """Split names into groups that are drawn in one call: of one kind, and not too large."""
    part: list[str] = []
    for name in shapes:
        small = len(shapes[name]) == 1
        if part and (small or len(shapes[part[0]]) == 1 or sum(prod(shapes[n]) for n in part) > most):
            yield part
            part = []
        part.append(name)
    if part:
        yield part


def write_checkpoint(folder: Path, config: Mapping[str, Any], device: torch.device) -> int:
    """Write config, tokenizer and one file per layer, several at a time; return the bytes of the weights."""
    ends = {
        "model.word_embeddings.weight": (config["vocab_size"], config["hidden_size"]),
        "model.norm.weight": (config["hidden_size"],),
        "lm_head.weight": (config["vocab_size"], config["hidden_size"]),
    }
    layers = [layer_shapes(config, index) for index in range(config["num_hidden_layers"])]
    count = len(layers) + 1
    files = {
        f"model-{n + 1:05d}-of-{count:05d}.safetensors": shapes for n, shapes in enumerate([ends, *layers])
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    index = {"weight_map": {name: file for file, shapes in files.items() for name in shapes}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(write_shard, folder / file, shapes, device, seed)
            for seed, (file, shapes) in enumerate(files.items())
        ]
        return sum(job.result() for job in jobs)


def words(count: int) -> list[str]:
    """Return ``count`` different words of two or three syllables."""
    every = ("".join(parts) for length in (2, 3) for parts in product(SYLLABLES, repeat=length))
    return list(islice(every, count))


def write_tokenizer(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """Write a tokenizer of one word per id, with the published special tokens; return the words."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    special = {config["eos_token_id"]: "<|endoftext|>", config["mask_token_id"]: "<|mask|>"}
    known = words(config["eos_token_id"])
    vocab = {word: index for index, word in enumerate(known)}
    last = max(special)
    vocab |= {special.get(index, f"<unused{index}>"): index for index in range(len(known), last + 1)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=known[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    return known


def write_texts(path: Path, known: list[str], count: int, length: int) -> None:
    """Write texts of random words."""
    ids = np.random.default_rng(12).integers(0, len(known), (count, length))
    rows = ({"id": f"t{n}", "text": " ".join(known[i] for i in row)} for n, row in enumerate(ids))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a small shape, for smoke runs")
    parser.add_argument("--device", default="cuda", help="device that generates the random numbers")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--length", type=int, default=200, help="words of a text; 160 are used")
    arguments = parser.parse_args()
    config = {**MINI, **TINY} if arguments.tiny else MINI
    began = time.perf_counter()
    size = write_checkpoint(arguments.folder, config, torch.device(arguments.device))
    known = write_tokenizer(arguments.folder, config)
    write_texts(arguments.folder / "texts.jsonl", known, arguments.texts, arguments.length)
    print(f"{size / 1e9:.1f} GB in {time.perf_counter() - began:.1f} s: {arguments.folder}")


if __name__ == "__main__":
    main()
