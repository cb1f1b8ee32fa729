"""Documents to windows to batches: nothing lost, nothing doubled, and the step is the whole cursor."""

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.common.rng import keyed_generator
from orderlens.errors import DataFileError, UserInputError
from orderlens.training.data import (
    BatchReader,
    WindowMixture,
    pack,
    read_documents,
    rows_per_source,
    write_shard,
)

EOS, WINDOW = 1, 8
documents_lists = st.lists(st.lists(st.integers(2, 500), max_size=30), max_size=12)


def contents(windows: np.ndarray) -> list[int]:
    return sorted(int(token) for token in windows.flatten() if token != EOS)


@settings(max_examples=60, deadline=None)
@given(documents_lists, st.sampled_from([0.0, 0.5, 1.0]))
def test_every_token_is_packed_exactly_once(documents: list[list[int]], share: float) -> None:
    windows = pack(documents, WINDOW, EOS, share, keyed_generator(0, "test"))
    assert windows.shape[1] == WINDOW
    assert contents(windows) == sorted(token for document in documents for token in document)


def test_the_three_kinds_of_window() -> None:
    long, short = list(range(10, 29)), [50, 51]
    rng = keyed_generator(0, "test")
    packed = pack([long, short, short], WINDOW, EOS, 0.0, rng).tolist()
    assert packed == [
        long[:8],
        long[8:16],
        [EOS, 26, 27, 28, EOS, 50, 51, EOS],
        [EOS, 50, 51, EOS, EOS, EOS, EOS, EOS],
    ]
    assert pack([short], WINDOW, EOS, 1.0, rng).tolist() == [[50, 51, EOS, EOS, EOS, EOS, EOS, EOS]]


def test_a_document_that_exactly_fills_a_window_keeps_its_end() -> None:
    windows = pack([list(range(2, 9))], WINDOW, EOS, 0.0, keyed_generator(0, "test"))
    assert windows.tolist() == [[2, 3, 4, 5, 6, 7, 8, EOS]]


def mixture(folder: Path, batch: int = 6) -> WindowMixture:
    for source, first in (("a", 100), ("b", 200)):
        windows = np.arange(first, first + 10, dtype=np.uint16)[:, None].repeat(WINDOW, 1)
        write_shard(folder, source, "0", windows[:4])
        write_shard(folder, source, "1", windows[4:])
    return WindowMixture(folder, {"a": 2, "b": 1}, batch, seed=3)


def test_an_epoch_visits_every_window_once_and_the_next_is_shuffled_anew(tmp_path: Path) -> None:
    data = mixture(tmp_path)
    seen = np.concatenate([data.batch(step)[:4, 0] for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(100, 110))
    assert seen[:10].tolist() != seen[10:].tolist()


def test_batches_depend_on_the_step_alone(tmp_path: Path) -> None:
    data, again = mixture(tmp_path), mixture(tmp_path)
    late = data.batch(7)
    assert np.array_equal(again.batch(0), data.batch(0))
    assert np.array_equal(again.batch(7), late)
    assert not np.array_equal(WindowMixture(tmp_path, {"a": 2, "b": 1}, 6, seed=4).batch(0), data.batch(0))


def test_the_reader_delivers_the_same_batches_and_stops(tmp_path: Path) -> None:
    data = mixture(tmp_path)
    reader = BatchReader(data, start=2)
    got = [batch for batch, _ in zip(reader, range(6), strict=False)]
    reader.close()
    assert all(np.array_equal(batch, data.batch(2 + index)) for index, batch in enumerate(got))


def test_a_reader_error_reaches_the_caller(tmp_path: Path) -> None:
    data = mixture(tmp_path)
    for path in tmp_path.glob("a/*.npy"):
        path.unlink()
    reader = BatchReader(data, start=0, refresh_every=1)
    with pytest.raises(UserInputError, match="no windows for source a"):
        next(iter(reader))
    reader.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6), st.integers(6, 300))
def test_rows_fill_the_batch_and_follow_the_shares(shares: list[float], batch: int) -> None:
    named = {str(index): share for index, share in enumerate(shares)}
    rows = rows_per_source(named, batch)
    assert sum(rows.values()) == batch
    assert min(rows.values()) >= 1


def test_rows_follow_the_shares_where_they_can() -> None:
    assert rows_per_source({"a": 0.75, "b": 0.25}, 8) == {"a": 6, "b": 2}
    with pytest.raises(UserInputError, match="is too small for 3 sources"):
        rows_per_source({"a": 1, "b": 1, "c": 1}, 2)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_documents_are_read_from_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    opener = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    rows, text = tmp_path / f"a.jsonl{suffix}", tmp_path / f"a.txt{suffix}"
    with opener(rows, "wt", encoding="utf-8") as stream:
        stream.write(json.dumps({"text": "né"}) + "\n\n" + json.dumps({"text": " "}) + "\n")
    with opener(text, "wt", encoding="utf-8") as stream:
        stream.write("one\ndocument")
    assert list(read_documents(rows)) == ["né"]
    assert list(read_documents(text)) == ["one\ndocument"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"txt": 1}\n',
            "a.jsonl, row 2: training needs a field 'text'; this row has txt",
        ),
        ("a.jsonl", b"{\n", "a.jsonl, line 1: not valid JSON"),
        ("a.txt", b"\xff\xfe\xfa", "not UTF-8"),
        ("a.txt.gz", b"plain", "damaged"),
        ("a.doc", b"x", "unknown file format"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        list(read_documents(tmp_path / name))
    with pytest.raises(DataFileError, match="does not exist"):
        list(read_documents(tmp_path / "missing.txt"))
