"""Shared by the training recipes: which texts are excluded, and how texts are encoded and cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from check_overlap import document_digest

from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.training.data import Tokens, read_documents

LEFT_OUT = frozenset((Path(__file__).parent / "left_out.txt").read_text().split())
"""Digests of documents that overlap held-out texts (``check_overlap.py``)."""


def may_train(text: str) -> bool:
    return document_digest(text) not in LEFT_OUT


def encoded(bpe: FastTokenizer, texts: Iterable[str], batch: int = 2000) -> Iterator[list[int]]:
    left = iter(texts)
    while chunk := list(itertools.islice(left, batch)):
        yield from bpe.encode_many(chunk)


def interleave(groups: Sequence[Tokens], window: int) -> Tokens:
    """Return the rows [n, window] of all groups, alternately one row of each."""
    rows = [row for turn in itertools.zip_longest(*groups) for row in turn if row is not None]
    return np.stack(rows) if rows else np.empty((0, window), np.uint16)


def document_windows(
    bpe: FastTokenizer, path: Path, prefix: int, target: int, limit: int
) -> tuple[torch.Tensor, float]:
    """Return windows [n, prefix + target] and the mean number of bytes of a target."""
    length = prefix + target
    ids = (bpe.encode(text) for text in itertools.islice(read_documents(path), limit))
    windows = [item[:length] for item in ids if len(item) >= length]
    return torch.tensor(windows), target_bytes(bpe, windows, prefix)


def target_bytes(bpe: FastTokenizer, windows: Sequence[list[int]], prefix: int) -> float:
    """Return the mean number of bytes after the prefix."""
    return sum(bpe.byte_count(item[prefix:]) for item in windows) / len(windows)
