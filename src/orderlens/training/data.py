"""From text files to a tokenizer and windows on disk, and the windows in the batch of each step.

A window folder holds ``SOURCE/SHARD.npy`` files, uint16 [n, window], read through memory maps. A batch has a
fixed number of rows from every source; each source is read in a shuffled order that depends only on the seed
and the epoch. So a batch is a function of the step number, and a resumed run sees the same batches. Shards
may be added during training: they start a new *phase*, and checkpoints store the phases.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.common.files import replacing
from orderlens.common.rng import keyed_generator
from orderlens.errors import DataFileError, UserInputError
from orderlens.texts.rows import Row, TextSplit, expand_home, kind_of, read_rows, text_shape

Tokens = NDArray[np.uint16]


def pack(
    documents: Iterable[Sequence[int] | Tokens],
    window: int,
    eos_id: int,
    padded_share: float,
    rng: np.random.Generator,
) -> Tokens:
    """Return windows [n, window] that contain every token of ``documents`` exactly once, in packing order."""
    full: list[Tokens] = []
    stream: list[Tokens] = []
    for document in documents:
        closed = np.append(np.asarray(document, np.uint16), np.uint16(eos_id))
        if len(closed) <= window and rng.random() < padded_share:
            full.append(_filled(closed, window, eos_id)[None])
            continue
        cut = len(closed) // window * window
        if cut:
            full.append(closed[:cut].reshape(-1, window))
        stream.append(closed[cut:])
    return np.concatenate([np.empty((0, window), np.uint16), *full, _end_to_end(stream, window, eos_id)])


def _filled(tokens: Tokens, length: int, eos_id: int) -> Tokens:
    return np.pad(tokens, (0, length - len(tokens)), constant_values=eos_id)


def _end_to_end(pieces: Sequence[Tokens], window: int, eos_id: int) -> Tokens:
    joined = np.concatenate([np.empty(0, np.uint16), *pieces])
    rows = -(-len(joined) // (window - 1))
    body = _filled(joined, rows * (window - 1), eos_id).reshape(rows, window - 1)
    return np.pad(body, ((0, 0), (1, 0)), constant_values=eos_id)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of some files, and a record of how they were read.

    Attributes:
        documents: the texts, none of them empty.
        record: ``n_documents``, ``n_empty`` (skipped), and for ``.txt`` files ``split``, ``lines`` and
            ``paragraphs``.
    """

    documents: list[str]
    record: dict[str, Any]


def read_corpus(files: Iterable[Path], split: TextSplit = "none") -> Corpus:
    """Read all documents of ``files``."""
    documents: list[str] = []
    n_empty = 0
    shape: dict[str, Any] = {}
    for path in files:
        for row in text_rows(path, split):
            if row["text"].strip():
                documents.append(row["text"])
            else:
                n_empty += 1
        if kind_of(path) == "txt":
            shape = {"split": split} | {
                name: n + shape.get(name, 0) for name, n in text_shape(expand_home(path)).items()
            }
    return Corpus(documents, {"n_documents": len(documents), "n_empty": n_empty, **shape})


def read_documents(path: Path, split: TextSplit = "none") -> Iterator[str]:
    """Yield the non-empty documents of one file, one at a time."""
    return (row["text"] for row in text_rows(path, split) if row["text"].strip())


def text_rows(path: Path, split: TextSplit = "none") -> Iterator[Row]:
    """Yield the rows of one file; each must have a string in its field ``text``."""
    for number, row in read_rows(path, split=split):
        if not isinstance(row.get("text"), str):
            found = ", ".join(map(str, list(row)[:8])) or "nothing"
            raise DataFileError(f"{path}, row {number}: training needs a field 'text'; this row has {found}")
        yield row


def write_shard(folder: Path, source: str, name: str, windows: Tokens) -> Path:
    """Write one shard atomically; the file appears only when it is complete."""
    target = folder / source / f"{name}.npy"
    with replacing(target) as fresh, fresh.open("wb") as stream:
        np.save(stream, windows)
    return target


def rows_per_source(shares: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Split ``batch_size`` rows in proportion to ``shares`` (largest remainder); every source gets a row."""
    total = sum(shares.values())
    exact = {name: batch_size * share / total for name, share in shares.items()}
    rows = {name: max(1, int(value)) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: max(0, batch_size - sum(rows.values()))]:
        rows[name] += 1
    if batch_size < len(rows):
        raise UserInputError(
            f"a batch of {batch_size} windows is too small for {len(rows)} sources; raise the batch size"
        )
    while (excess := sum(rows.values()) - batch_size) > 0:
        largest = max(rows, key=lambda name: rows[name])
        rows[largest] -= min(excess, rows[largest] - 1)
    return rows


@dataclass
class Phase:
    """From step ``start`` on, batches come from these shards (names relative to the window folder)."""

    start: int
    shards: dict[str, list[str]]
    _maps: dict[str, list[Tokens]] = field(default_factory=dict, repr=False)
    _permutation: dict[str, tuple[int, NDArray[np.int64]]] = field(default_factory=dict, repr=False)

    def open(self, folder: Path) -> None:
        """Memory-map the shards."""
        self._maps = {
            source: [np.load(folder / name, mmap_mode="r") for name in names]
            for source, names in self.shards.items()
        }

    def size(self, source: str) -> int:
        """Number of windows of one source."""
        return sum(len(shard) for shard in self._maps[source])

    def rows(self, source: str, first: int, count: int, key: tuple[int, int]) -> Tokens:
        """Return the windows ``first`` to ``first + count`` of a source's endless shuffled sequence."""
        wanted = np.arange(first, first + count)
        epochs, places = np.divmod(wanted, self.size(source))
        chosen = [
            self._shuffled(source, int(epoch), key)[place]
            for epoch, place in zip(epochs, places, strict=True)
        ]
        return np.stack([self._window(source, int(index)) for index in chosen])

    def _shuffled(self, source: str, epoch: int, key: tuple[int, int]) -> NDArray[np.int64]:
        cached = self._permutation.get(source)
        if cached is None or cached[0] != epoch:
            seed, phase = key
            order = keyed_generator(seed, "windows", source, phase, epoch).permutation(self.size(source))
            self._permutation[source] = cached = (epoch, order)
        return cached[1]

    def _window(self, source: str, index: int) -> Tokens:
        for shard in self._maps[source]:
            if index < len(shard):
                return np.asarray(shard[index])
            index -= len(shard)
        raise IndexError(index)


class WindowMixture:
    """The batches of a run: ``batch(step)`` is a pure function of the seed, the phases and the step."""

    def __init__(self, folder: Path, shares: Mapping[str, float], batch_size: int, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.shares = dict(shares)
        self.rows = rows_per_source(shares, batch_size)
        self.phases: list[Phase] = []
        self.refresh(0)

    def refresh(self, step: int) -> bool:
        """Start a new phase at ``step`` if the folder holds other shards than the current phase."""
        shards = {source: self._listing(source) for source in self.rows}
        if self.phases and self.phases[-1].shards == shards:
            return False
        empty = [source for source, names in shards.items() if not names]
        if empty:
            raise UserInputError(
                f"{self.folder}: no windows for source {', '.join(empty)}; add shards or remove the source"
            )
        phase = Phase(step, shards)
        phase.open(self.folder)
        self.phases.append(phase)
        return True

    def _listing(self, source: str) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in (self.folder / source).glob("*.npy"))

    def batch(self, step: int) -> Tokens:
        """Return the windows of one step, [batch, window], grouped by source."""
        index = max(i for i, phase in enumerate(self.phases) if phase.start <= step)
        phase = self.phases[index]
        since = step - phase.start
        parts = [phase.rows(name, since * n, n, (self.seed, index)) for name, n in self.rows.items()]
        return np.concatenate(parts)

    def state(self) -> list[dict[str, Any]]:
        """Return the phases as plain data for a checkpoint."""
        return [{"start": phase.start, "shards": phase.shards} for phase in self.phases]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Continue with the phases of a checkpoint."""
        self.phases = [Phase(item["start"], item["shards"]) for item in state]
        for phase in self.phases:
            phase.open(self.folder)


class BatchReader:
    """Prefetches batches on a background thread; iterate from any step, ``close`` at the end."""

    def __init__(self, mixture: WindowMixture, start: int, refresh_every: int = 0, prefetch: int = 4) -> None:
        self._mixture, self._refresh_every = mixture, refresh_every
        self._queue: queue.Queue[Tokens | BaseException] = queue.Queue(maxsize=prefetch)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(start,), name="batch-reader", daemon=True)
        self._thread.start()

    def _work(self, step: int) -> None:
        try:
            while not self._stop.is_set():
                if self._refresh_every and step % self._refresh_every == 0:
                    self._mixture.refresh(step)
                self._put(self._mixture.batch(step))
                step += 1
        except BaseException as error:  # noqa: BLE001  passed to the training thread, which raises it
            self._put(error)

    def _put(self, item: Tokens | BaseException) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[Tokens]:
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        self._thread.join()


MASK_TOKEN, EOS_TOKEN = "<|mask|>", "<|eos|>"
SPECIAL_TOKENS = (MASK_TOKEN, EOS_TOKEN, "<|pad|>", "<|reserved|>")
MASK_ID, EOS_ID = 0, 1

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Units that BPE merges do not cross: words with their space, single digits, punctuation, white space."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Return a ``tokenizers.Tokenizer`` with at most ``vocab_size`` ids, including the 256 bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
