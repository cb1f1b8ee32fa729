"""Writes a small base file in the published layout, byte by byte, with random weights."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

SHAPE = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<unused{n}>" for n in range(3, 17))]
MERGES = ["h e", "l l", "he ll", "Ġ w", "hell o"]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + place) for place in range(len(others))]


def vocabulary() -> list[str]:
    return [*CONTROL, *byte_letters(), *(pair.replace(" ", "") for pair in MERGES)]


def q8_0(weights: np.ndarray) -> bytes:
    blocks = weights.reshape(-1, 32)
    scale = (np.abs(blocks).max(1) / 127).astype(np.float16)
    values = np.round(blocks / scale[:, None].astype(np.float32)).astype(np.int8)
    return b"".join(s.tobytes() + v.tobytes() for s, v in zip(scale, values, strict=True))


def q4_1(weights: np.ndarray) -> bytes:
    blocks = weights.reshape(-1, 32)
    least = blocks.min(1).astype(np.float16)
    scale = ((blocks.max(1) - blocks.min(1)) / 15).astype(np.float16)
    values = np.round((blocks - least[:, None].astype(np.float32)) / scale[:, None].astype(np.float32))
    values = values.clip(0, 15).astype(np.uint8)
    packed = values[:, :16] | values[:, 16:] << 4
    return b"".join(
        s.tobytes() + m.tobytes() + v.tobytes() for s, m, v in zip(scale, least, packed, strict=True)
    )


FORMATS = {0: lambda weights: weights.astype("<f4").tobytes(), 3: q4_1, 8: q8_0}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: object) -> bytes:
    head = text(key)
    if isinstance(value, str):
        return head + struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return head + struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return head + struct.pack("<If", 6, value)
    if isinstance(value, list) and isinstance(value[0], str):
        return head + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(item) for item in value)
    if isinstance(value, list):
        return head + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return head + struct.pack("<II", 4, value)


def write_gguf(path: Path, metadata: dict, tensors: dict[str, tuple[np.ndarray, int]]) -> None:
    table, body = b"", b""
    for name, (weights, kind) in tensors.items():
        shape = weights.shape[::-1]
        table += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += FORMATS[kind](weights)
        body += b"\0" * (-len(body) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(pair(key, value) for key, value in metadata.items()) + table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def small_metadata() -> dict:
    tokens = vocabulary()
    return {
        "general.architecture": "llama",
        "llama.block_count": SHAPE["layers"],
        "llama.context_length": 1024,
        "llama.embedding_length": SHAPE["width"],
        "llama.feed_forward_length": SHAPE["ffn"],
        "llama.attention.head_count": SHAPE["heads"],
        "llama.attention.head_count_kv": SHAPE["kv_heads"],
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CONTROL else 1 for token in tokens],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def small_tensors(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, int]]:
    width, ffn = SHAPE["width"], SHAPE["ffn"]
    kv = width // SHAPE["heads"] * SHAPE["kv_heads"]

    def matrix(rows: int, columns: int, kind: int = 3) -> tuple[np.ndarray, int]:
        return rng.normal(0, 0.2, (rows, columns)).astype(np.float32), kind

    def vector() -> tuple[np.ndarray, int]:
        return rng.uniform(0.5, 1.5, width).astype(np.float32), 0

    tensors = {"token_embd.weight": matrix(len(vocabulary()), width, 8), "output_norm.weight": vector()}
    for index in range(SHAPE["layers"]):
        name = f"blk.{index}."
        tensors |= {
            f"{name}attn_norm.weight": vector(),
            f"{name}attn_q.weight": matrix(width, width),
            f"{name}attn_k.weight": matrix(kv, width),
            f"{name}attn_v.weight": matrix(kv, width),
            f"{name}attn_output.weight": matrix(width, width),
            f"{name}ffn_norm.weight": vector(),
            f"{name}ffn_gate.weight": matrix(ffn, width),
            f"{name}ffn_up.weight": matrix(ffn, width),
            f"{name}ffn_down.weight": matrix(width, ffn),
        }
    return tensors
