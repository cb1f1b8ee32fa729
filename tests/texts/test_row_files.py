"""Files of rows: every format gives the same rows, and every damage is one line that names the place."""

from __future__ import annotations

import gzip
import json
import lzma
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlens.errors import DataFileError, UserInputError
from orderlens.texts import rows
from orderlens.texts.rows import read_rows, text_shape

ROWS = [
    {"id": "a", "text": 'née "quoted", with\nline end'},
    {"id": "b", "text": "plain"},
    {"id": "c", "text": "日本語 ; tab\t!"},
]
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def cells(rows, delimiter):
    lines = [delimiter.join(rows[0])]
    for row in rows:
        quoted = ['"' + str(value).replace('"', '""') + '"' for value in row.values()]
        lines.append(delimiter.join(quoted))
    return "\r\n".join(lines) + "\r\n"


CONTENT = {
    "jsonl": "\n\n".join(json.dumps(row) for row in ROWS),
    "json": json.dumps(ROWS, indent=1),
    "csv": "\ufeff" + cells(ROWS, ","),
    "tsv": cells(ROWS, "\t"),
}


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", CONTENT)
def test_every_format_gives_the_same_rows(tmp_path, kind, packing):
    path = write(tmp_path, f"rows.{kind}{packing}", PACK[packing](CONTENT[kind].encode()))
    assert [row for _, row in read_rows(path)] == ROWS


def test_parquet_gives_the_same_rows_and_leaves_out_nulls(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([*ROWS, {"id": "d", "text": None}]), path)
    assert [row for _, row in read_rows(path)] == [*ROWS, {"id": "d"}]


def test_json_files_on_the_hub_hold_lines(tmp_path):
    path = write(tmp_path, "c4.json.gz", gzip.compress(CONTENT["jsonl"].encode(), mtime=0))
    assert [row for _, row in read_rows(path)] == ROWS


def test_a_nameless_column_is_an_index_and_left_out(tmp_path):
    path = write(tmp_path, "a.csv", ",text\n0,hello\n1,you\n")
    assert list(read_rows(path)) == [(2, {"text": "hello"}), (3, {"text": "you"})]


@pytest.mark.parametrize(
    ("split", "texts"),
    [
        ("none", ["one\ntwo\n\n\nthree\n"]),
        ("lines", ["one", "two", "three"]),
        ("paragraphs", ["one\ntwo", "three"]),
    ],
)
def test_a_text_file_is_cut_as_asked(tmp_path, split, texts):
    path = write(tmp_path, "story.txt.gz", gzip.compress(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n\r\nthree\r\n"))
    rows = [row for _, row in read_rows(path, split=split)]
    assert [row["text"] for row in rows] == texts
    ids = ["story"] if split == "none" else [f"story-{index}" for index in range(len(texts))]
    assert [row["id"] for row in rows] == ids
    assert text_shape(path) == {"lines": 3, "paragraphs": 2}


def test_an_unknown_split_is_named(tmp_path):
    with pytest.raises(UserInputError, match="'words' is unknown; choose none, lines, paragraphs"):
        list(read_rows(write(tmp_path, "a.txt", "x"), split="words"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": ', "a.jsonl, line 2: not valid JSON"),
        ("a.jsonl", '{"text": "x\n{"text": "y"}', "line 1: not valid JSON .Unterminated string"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}', "line 2: not UTF-8"),
        ("a.jsonl", "[1, 2]", "line 1: expected an object with fields, got a list"),
        ("a.jsonl", "7", "got a number"),
        ("a.jsonl", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ("a.jsonl", '{"text": "a\\ud800b"}', "half of a surrogate pair"),
        ("a.jsonl", '{"text": "\\ude00\\ud83d"}', "half of a surrogate pair"),
        ("a.jsonl", '{"id": 1' + "0" * 5000 + ', "text": "x"}', "not readable JSON"),
        ("a.jsonl", '{"text": "x"}'.encode("utf-16"), "line 1: (not UTF-8|contains NUL bytes)"),
        ("a.jsonl", b'{"text": "x\x00"}', "line 1: contains NUL bytes"),
        ("a.jsonl", "\n \n", "has no rows"),
        ("a.jsonl", "", "has no rows"),
        ("a.txt", " \n", "a.txt has no rows; give a file with at least one$"),
        ("a.csv", "", "has no rows"),
        ("a.csv", "id,text\n", "has no rows"),
        ("a.json", "[1]", "item 1: expected an object"),
        ("a.json", "[]", "has no rows"),
        ("a.csv", "text,id,text\na,b,c\n", "two columns are called 'text'"),
        ("a.csv", ",\na,b\n", "has no column names"),
        ("a.csv", "id;text\n1;x\n", "the header is one column, 'id;text'; separate columns with commas"),
        ("a.csv", "id,text\n1,a,b\n", "line 2: 3 cells where the header has 2"),
        ("a.csv", 'id,text\n1,"open\n', "line 2: not valid CSV .a quote is never closed"),
        ("a.csv", 'id,text\n1,"a"b\n', "line 2: not valid CSV"),
        ("a.csv", "id,text\n1,caf\xe9\n".encode("latin-1"), "line 2: not UTF-8"),
        ("a.jsonl.gz", b"not gzip", "damaged or cut short"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "abc"}\n' * 999, mtime=0)[:60], "damaged or cut short"),
        ("a.csv.xz", lzma.compress(b"text\nabc\n" * 999)[:60], "damaged or cut short"),
        ("a.txt.xz", b"not xz", "damaged or cut short"),
        ("a.parquet", b"PAR1 nonsense", "not a readable Parquet file"),
        ("a.parquet", b"", "not a readable Parquet file"),
        ("a.doc", "x", "unknown file format; allowed are .jsonl"),
        ("a.parquet.gz", b"x", "unknown file format"),
    ],
)
def test_damage_is_one_line_that_names_the_place(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(DataFileError, match=message) as caught:
        list(read_rows(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_parquet_file_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS * 500), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataFileError, match="not a readable Parquet file"):
        list(read_rows(path))


def test_over_long_lines_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LONGEST_LINE", 1 << 20)
    path = write(tmp_path, "a.jsonl.gz", gzip.compress(b'{"text": "' + b"x" * (1 << 21), mtime=0))
    with pytest.raises(DataFileError, match="line 1: longer than 1 MiB; write one row per line"):
        list(read_rows(path))


def test_long_cells_are_read(tmp_path):
    text = "x" * 300_000
    assert [row["text"] for _, row in read_rows(write(tmp_path, "a.csv", f"text\n{text}\n"))] == [text]


def test_places_that_are_no_files(tmp_path):
    with pytest.raises(DataFileError, match="is a folder; give a file"):
        list(read_rows(tmp_path))
    with pytest.raises(DataFileError, match=r"none\.jsonl' does not exist"):
        list(read_rows(tmp_path / "none.jsonl"))
    with pytest.raises(DataFileError, match="cannot be opened"):
        list(read_rows(tmp_path / ("x" * 3000 + ".jsonl")))
    with pytest.raises(DataFileError, match="cannot be opened"):
        list(read_rows(tmp_path / "a\0.jsonl"))
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataFileError, match="is a pipe or device"):
        list(read_rows(tmp_path / "pipe.jsonl"))
