"""Distillation data from the original model of `smol`: answers to instructions, and continued texts."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import smol_prompts
import torch
from smol_causal import continue_rows

from orderlens.common.rng import keyed_generator
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.small.network import Transformer
from orderlens.models.smol.adapter import AdapterSettings
from orderlens.models.smol.model import END_OF_TEXT, TURN_END, read_original
from orderlens.training.data import Tokens, write_shard

SEED = 20261115
WINDOW, BLOCK = 512, 32
PREFIXES = {"c4-en": 0.6, "wikinews-en": 0.2, "wikipedia-en": 0.2}
"""Sources of the beginnings that the original model continues, and their shares."""
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
STOPS = frozenset({END_OF_TEXT, TURN_END})


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def chat_text(instruction: str) -> str:
    """Return the prompt in the base's chat format, up to the assistant's turn (does not need jinja)."""
    turns = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{instruction}<|im_end|>\n"
    return turns + "<|im_start|>assistant\n"


def block_filled(ids: Sequence[int], more: int = 0) -> list[int]:
    """Pad a conversation with the end-of-turn token to the end of its block, and by ``more`` blocks."""
    rest = -len(ids) % BLOCK + more * BLOCK
    return [*ids, *([TURN_END] * rest)]


def chat_windows(conversations: Sequence[Sequence[int]], rng: np.random.Generator) -> Tokens:
    """Pack conversations into windows; each starts at a block boundary, and none is cut."""
    rows: list[list[int]] = []
    now: list[int] = []
    for ids in conversations:
        closed = block_filled(ids, int(rng.random() < 0.25))[:WINDOW]
        if len(now) + len(closed) > WINDOW:
            rows.append(now)
            now = []
        now = now + closed
    rows.append(now)
    filled = [row + [TURN_END] * (WINDOW - len(row)) for row in rows if row]
    return np.array(filled, np.uint16).reshape(-1, WINDOW)


def original(base: Path, device: str) -> tuple[Transformer, FastTokenizer]:
    model = read_original(base, AdapterSettings().mask_id, "")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return model.network.to(device, dtype), model.tokenizer


def distil_chat(
    network: Transformer, bpe: FastTokenizer, work: Path, seconds: float, batch: int, new: int, began: float
) -> None:
    """Sample answers to instructions until the time is up; each round is one shard."""
    kept_all, n_round = 0, 0
    while time.monotonic() - began < seconds or not n_round:
        rng = keyed_generator(SEED, "instructions", n_round)
        pool = [smol_prompts.instruction(rng) for _ in range(4 * batch)]
        prompts = bpe.encode_many([chat_text(item.text) for item in pool])
        order = sorted(range(len(pool)), key=lambda place: len(prompts[place]))
        conversations, texts = [], []
        for low in rng.permutation(range(0, len(order), batch)):
            if conversations and time.monotonic() - began > seconds:
                break
            some = order[low : low + batch]
            heat = float(rng.choice([0.3, 0.6, 0.8]))
            draws = torch.Generator(network.embedding.weight.device).manual_seed(int(rng.integers(2**62)))
            answers = continue_rows(
                network, [prompts[i] for i in some], new, STOPS, temperature=heat, generator=draws
            )
            for place, answer in zip(some, answers, strict=True):
                if not answer or answer[-1] != TURN_END or len(prompts[place]) + len(answer) > WINDOW:
                    continue
                text = bpe.decode(answer[:-1])
                if smol_prompts.worth_keeping(text, pool[place]):
                    conversations.append([*prompts[place], *answer])
                    texts.append({"instruction": pool[place].text, "answer": text})
        mixed = [conversations[i] for i in rng.permutation(len(conversations))]
        if mixed:
            write_shard(work / "windows", "chat", f"chat-{n_round}", chat_windows(mixed, rng))
        kept_all, n_round = kept_all + len(mixed), n_round + 1
        save_samples(work / "out" / "chat-samples.jsonl", texts[:: max(1, len(texts) // 40)])
        say(f"chat: {kept_all} answers kept, {time.monotonic() - began:.0f} s")


def distil_text(
    network: Transformer, bpe: FastTokenizer, work: Path, seconds: float, batch: int, new: int, began: float
) -> None:
    """Continue beginnings of documents at temperature 1 until the time is up; each batch is one shard."""
    sources = {source: sorted((work / "beginnings" / source).glob("*.npy")) for source in PREFIXES}
    starts = {
        name: np.concatenate([np.load(path) for path in paths]) for name, paths in sources.items() if paths
    }
    starts = {name: rows for name, rows in starts.items() if len(rows)}
    shares = np.array([PREFIXES[name] for name in starts])
    n_batch, n_tokens = 0, 0
    while time.monotonic() - began < seconds or not n_batch:
        rng = keyed_generator(SEED, "continuations", n_batch)
        chosen = rng.choice(list(starts), batch, p=shares / shares.sum())
        prompts = [[int(i) for i in starts[name][rng.integers(len(starts[name]))]] for name in chosen]
        draws = torch.Generator(network.embedding.weight.device).manual_seed(int(rng.integers(2**62)))
        found = continue_rows(network, prompts, new, STOPS, temperature=1.0, generator=draws)
        documents = [
            [*head, *(tail[:-1] if tail[-1] in STOPS else tail)]
            for head, tail in zip(prompts, found, strict=True)
        ]
        whole = [ids for ids, tail in zip(documents, found, strict=True) if tail[-1] in STOPS]
        cut = [ids for ids, tail in zip(documents, found, strict=True) if tail[-1] not in STOPS]
        windows = teacher_windows(whole, cut, rng)
        write_shard(work / "windows", "teacher", f"teacher-{n_batch}", windows)
        n_batch, n_tokens = n_batch + 1, n_tokens + windows.size
        save_samples(
            work / "out" / "teacher-samples.jsonl", [{"text": bpe.decode(ids)} for ids in documents[:5]]
        )
        say(f"teacher: {n_tokens / 1e6:.2f} M tokens, {time.monotonic() - began:.0f} s")


def teacher_windows(whole: Sequence[list[int]], cut: Sequence[list[int]], rng: np.random.Generator) -> Tokens:
    """Concatenate texts into windows; texts that the model did not finish get no end-of-text token."""
    pieces = [[*ids, END_OF_TEXT] for ids in whole] + [list(ids) for ids in cut]
    joined = list(itertools.chain.from_iterable(pieces[i] for i in rng.permutation(len(pieces))))
    rows = max(1, len(joined) // WINDOW)
    joined += [END_OF_TEXT] * (rows * WINDOW - len(joined))
    return np.array(joined[: rows * WINDOW], np.uint16).reshape(rows, WINDOW)


def save_samples(path: Path, rows: Iterable[dict[str, Any]], most: int = 400) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    have = path.read_text().count("\n") if path.exists() else 0
    with path.open("a", encoding="utf-8") as stream:
        for row in itertools.islice(rows, max(0, most - have)):
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
