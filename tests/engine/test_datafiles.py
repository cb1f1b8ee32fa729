"""Reading data files: what is accepted, and one clear line for what is not."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlens.datafiles import SplitRule, load_samples, read_rows
from orderlens.errors import DataFileError
from orderlens.models.characters import CharacterTokenizer

ROWS = [{"id": "one", "text": "a" * 12}, {"prompt": "ab", "target": "cd"}, {"id": 7, "text": "b" * 3}]


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def jsonl(rows):
    return "\n".join(json.dumps(row) for row in rows)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_formats_give_the_same_rows(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    rows = [
        {"id": str(row.get("id", i)), **{k: v for k, v in row.items() if k != "id"}}
        for i, row in enumerate(ROWS)
    ]
    if suffix == ".parquet":
        schema = pa.schema([(name, pa.string()) for name in ("id", "text", "prompt", "target")])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    else:
        content = jsonl(rows).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert read_rows(str(path)) == rows


def test_texts_are_split_and_short_ones_counted(tmp_path):
    source = write(tmp_path, "d.jsonl", jsonl(ROWS))
    loaded = load_samples(source, CharacterTokenizer(), SplitRule(4, 6))
    assert [(sample.id, len(sample.prompt), len(sample.target)) for sample in loaded.samples] == [
        ("one", 4, 6),
        ("1", 2, 2),
    ]
    assert (loaded.n_rows, loaded.n_too_short) == (3, 1)
    short = load_samples(source, CharacterTokenizer(), SplitRule(1, 6, allow_short=True))
    assert [len(sample.target) for sample in short.samples] == [6, 2, 2]


def test_text_file_is_one_document(tmp_path):
    loaded = load_samples(
        write(tmp_path, "story.txt", "hello world"), CharacterTokenizer(), SplitRule(4, 100)
    )
    assert [(sample.id, len(sample.target)) for sample in loaded.samples] == [("story", 7)]


def test_choice_by_hash_ignores_the_order_of_rows(tmp_path):
    rows = [{"id": f"r{i}", "text": "x" * 20} for i in range(10)]
    rule, tokenizer = SplitRule(4, 4), CharacterTokenizer()
    one = load_samples(write(tmp_path, "a.jsonl", jsonl(rows)), tokenizer, rule, limit=4, choose_by_hash=True)
    two = load_samples(
        write(tmp_path, "b.jsonl", jsonl(rows[::-1])), tokenizer, rule, limit=4, choose_by_hash=True
    )
    assert [x.id for x in one.samples] == [x.id for x in two.samples] != ["r0", "r1", "r2", "r3"]


def test_bundled_passages_are_a_source():
    rows = read_rows("passages")
    assert len(rows) >= 120
    assert all(len(row["text"].split()) >= 180 for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": ', "a.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}', "line 2: not UTF-8"),
        ("a.jsonl", '{"txt": "x"}', "row 1: needs 'text', or 'prompt'"),
        ("a.jsonl", '{"prompt": "x", "target": 3}', "'target' must be text"),
        ("a.jsonl", "[1, 2]", "expected an object"),
        ("a.jsonl", "\n", "holds no rows"),
        ("a.jsonl.gz", b"not gzip", "cannot read on"),
        ("a.parquet", b"PAR1 nonsense", "not a readable Parquet file"),
        ("a.txt", b"ok\nbad \xff byte", "line 2: not UTF-8"),
        ("a.csv", "text\nx", "unknown ending"),
        ("a.jsonl", '{"text": "tiny"}', "none of 1 rows has 32 \\+ 128 tokens"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    with pytest.raises(DataFileError, match=message):
        load_samples(write(tmp_path, name, content), CharacterTokenizer(), SplitRule())


def test_truncated_gzip_is_named(tmp_path):
    whole = gzip.compress(jsonl([{"text": "abc" * 2000}] * 50).encode())
    with pytest.raises(DataFileError, match="cannot read on"):
        read_rows(write(tmp_path, "cut.jsonl.gz", whole[:60]))


def test_missing_file_suggests_a_built_in_name():
    with pytest.raises(DataFileError, match=r"'passage' does not exist; did you mean 'passages'\?"):
        read_rows("passage")


def test_c4_offline_says_what_to_do(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataFileError, match=r"cannot get C4 from the hub.*--data"):
        read_rows("c4")
