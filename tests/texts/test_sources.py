from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orderlens as ol
from orderlens import tasks
from orderlens.errors import DataFileError, UnknownNameError
from orderlens.texts.sources import C4, HubFile, fetch, load_passages, read_docs, sample_rows

ROWS: list[dict[str, Any]] = [{"question": f"q{n % 2}", "golden": str(n)} for n in range(4)]


def write(path: Path, rows: list[Any]) -> Path:
    text = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.parquet"])
def test_all_formats_give_the_same_documents(tmp_path: Path, name: str) -> None:
    docs = tasks.get_task("cmath").load(write(tmp_path / name, ROWS))
    assert list(docs) == ["0", "1", "2", "3"]  # the repeated question keeps its own row
    assert [doc["golden"] for doc in docs.values()] == ["0", "1", "2", "3"]
    assert list(tasks.get_task("cmath").load(tmp_path / name, limit=2)) == ["0", "1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "q", "golden": "1"}\n{"question": "q"}\n', "row 2: has no 'golden'"),
        (b'{"question": "q", "golden": "1"}\nnot json\n', "line 2: not valid JSON"),
        (b"[1, 2]\n", "line 1: expected an object"),
        (b'{"question": "\xff"}\n', "not UTF-8"),
    ],
)
def test_broken_files_are_named_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        read_docs(path, ("question", "golden"))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="does not exist"):
        read_docs(tmp_path / "missing.jsonl", ())
    for name, message in (
        ("x.doc", "unknown file format"),
        ("x.txt", "need the fields q; give JSON Lines or CSV"),
        ("x.parquet", "not a readable Parquet file"),
        ("x.jsonl.gz", "damaged"),
    ):
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(DataFileError, match=message):
            read_docs(tmp_path / name, ("q",))


def test_csv_cells_write_lists_as_json(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text('question_id,question,options,answer\n7,"q, r?","[""a"", ""b""]",B\n')
    docs = tasks.get_task("mmlu-pro").load(path)
    assert docs["7"]["options"] == ["a", "b"]
    assert tasks.grade("mmlu-pro", docs["7"], "ANSWER: B").correct


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("gsm8k", {"question": "q", "answer": "no number"}, "gsm8k, row 1: 'answer' holds no reference"),
        ("arith", {"id": "a", "prompt": "p"}, "arith, row 1: has no 'golden'"),
        ("choice", {"id": "a", "prompt": "p", "options": ["x"], "answer": "B"}, "choice, row 1: 'answer'"),
        (
            "ifeval",
            {"key": 1, "prompt": "p", "instruction_id_list": ["a"], "kwargs": []},
            "ifeval, row 1: 'kwargs' has 0 entries",
        ),
    ],
)
def test_rows_that_cannot_be_graded_are_refused_when_loaded(
    tmp_path: Path, task: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataFileError, match=message):
        tasks.get_task(task).load(write(tmp_path / "d.jsonl", [row]))


def test_repeated_row_ids_are_refused(tmp_path: Path) -> None:
    row = {"question_id": 7, "question": "q", "options": ["a"], "answer": "A"}
    with pytest.raises(DataFileError, match="two rows have question_id 7"):
        tasks.get_task("mmlu-pro").load(write(tmp_path / "m.jsonl", [row, row]))
    row = {"id": "a", "prompt": "p", "golden": "1"}
    with pytest.raises(DataFileError, match="two rows have id a"):
        tasks.get_task("arith").load(write(tmp_path / "a.jsonl", [row, row]))


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline hub cache in the published layout, read by the real client."""
    constants = pytest.importorskip("huggingface_hub.constants")
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def put_in_cache(cache: Path, repo: str, file: str, rows: list[Any], revision: str) -> None:
    folder = cache / f"datasets--{repo.replace('/', '--')}"
    path = folder / "snapshots" / revision / file
    path.parent.mkdir(parents=True)
    write(path, rows)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)


def test_hub_files_come_from_the_cache_offline(hub_cache: Path) -> None:
    put_in_cache(hub_cache, "weitianwen/cmath", "cmath_test.jsonl", ROWS, "a" * 40)
    assert len(tasks.get_task("cmath").load()) == 4
    hub = tasks.get_task("gsm8k").hub  # type: ignore[attr-defined]
    put_in_cache(
        hub_cache,
        hub.repo,
        "main/test-00000-of-00001.parquet",
        [{"question": "q", "answer": "#### 1"}],
        hub.revision,
    )
    assert list(tasks.get_task("gsm8k").load()) == ["0"]


def test_offline_without_a_copy_is_one_clear_line(hub_cache: Path) -> None:
    with pytest.raises(
        DataFileError, match=r"data set google/IFEval@966cd89.* is not in the local cache.*give a local file"
    ) as caught:
        tasks.get_task("ifeval").load()
    assert "\n" not in str(caught.value)


def test_a_snapshot_without_the_file(hub_cache: Path) -> None:
    put_in_cache(hub_cache, "org/name", "other.jsonl", ROWS, "b" * 40)
    with pytest.raises(DataFileError, match="has no file"):
        fetch(HubFile("org/name", "wanted.jsonl"))


@pytest.mark.parametrize(
    ("task", "row", "field"),
    [
        ("mmlu-pro", {"question_id": 1, "question": "q", "options": "abc", "answer": "A"}, "options"),
        (
            "hellaswag",
            {"activity_label": "a", "ctx_a": "", "ctx_b": "", "endings": 5, "label": "0"},
            "endings",
        ),
        ("ifeval", {"key": 1, "prompt": "p", "instruction_id_list": ["x"], "kwargs": {}}, "kwargs"),
    ],
)
def test_fields_that_must_be_lists(tmp_path: Path, task: str, row: dict[str, Any], field: str) -> None:
    with pytest.raises(DataFileError, match=f"row 1: '{field}' is not a list"):
        tasks.get_task(task).load(write(tmp_path / "d.jsonl", [row]))


def put_c4(cache: Path, shards: int, of: int = 3) -> list[str]:
    """Write shards of 40 rows each in the layout of the hub; return the texts."""
    folder, texts = cache / "datasets--allenai--c4", []
    for shard in range(shards):
        path = folder / "snapshots" / C4.revision / f"en/c4-validation.{shard:05d}-of-{of:05d}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"shard {shard} row {row} of this file", "url": "u"} for row in range(40)]
        texts += [row["text"] for row in rows]
        write(path, rows)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c" * 40)  # the branch has moved on
    return texts


def test_c4_is_drawn_by_hash_from_all_shards_of_one_revision(hub_cache: Path) -> None:
    put_c4(hub_cache, 3)
    found = ol.load_samples("c4", "hmm", prefix_tokens=4, target_tokens=8, limit=12)
    ids = [f"{shard}-{row}" for shard in range(3) for row in range(1, 41)]
    wanted = sorted(ids, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:12]
    assert [sample.id for sample in found] == wanted
    assert {name.partition("-")[0] for name in wanted} == {"0", "1", "2"}
    record = found.record()
    digest = hashlib.blake2b("\n".join(wanted).encode(), digest_size=16).hexdigest()
    assert (record["by_hash"], record["rule"], record["ids_digest"], record["revision"]) == (
        True, "smallest SHA-256 of the id", digest, f"allenai/c4@{C4.revision}"
    )  # fmt: skip


def test_more_rows_are_read_if_the_spare_ones_are_too_short(hub_cache: Path, monkeypatch: Any) -> None:
    put_c4(hub_cache, 3)
    whole = ol.load_samples("c4", "hmm", prefix_tokens=4, target_tokens=8)
    monkeypatch.setattr("orderlens.texts.loading.SPARE", 1)
    short = ol.load_samples("c4", "hmm", prefix_tokens=4, target_tokens=23, limit=20)
    longest = [s.id for s in ol.load_samples("c4", "hmm", prefix_tokens=4, target_tokens=23)]
    assert (len(whole), len(longest)) == (120, 90)
    assert short.left_out["too short"] > 0
    assert [sample.id for sample in short] == longest[:20]


def test_a_missing_shard_of_c4_is_named(hub_cache: Path) -> None:
    put_c4(hub_cache, 2)
    with pytest.raises(DataFileError, match="2 of 3 shards of the validation split"):
        ol.load_samples("c4", "hmm", limit=2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": [1, 1.5]}, "'prompt' contains 1.5; token ids are whole numbers"),
        ({"prompt": [1], "target": [True]}, "'target' contains True; token ids are whole numbers"),
        ({"prompt": [-1]}, "'prompt' contains -1; token ids are from 0"),
        ({"prompt": 3}, "'prompt' must be text or a list of token ids, not 3"),
        ({"template": "a [[2]] b", "prompt": "x"}, "'template' must be text with holes"),
        ({"template": 3}, "'template' must be text with holes"),
        ({"target": "x", "text": "y"}, "'target' needs a 'prompt', which the row lacks"),
        ({"text": 3}, "'text' must be text, not 3"),
    ],
)
def test_rows_of_samples_are_refused_by_field(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "rows.jsonl", [{"text": "a good row"}, row])
    with pytest.raises(DataFileError, match=re.escape(message)) as refused:
        list(sample_rows(str(file)))
    assert "rows.jsonl, row 2" in str(refused.value)


def test_rows_of_samples_keep_templates_and_ids(tmp_path: Path) -> None:
    rows = [{"template": "a [[2]] b"}, {"prompt": [1, 2], "target": [3]}]
    found = list(sample_rows(str(write(tmp_path / "rows.jsonl", rows))))
    assert [row.get("template") for row in found] == ["a [[2]] b", None]
    assert (found[1]["prompt"], found[1]["target"]) == ([1, 2], [3])


def test_passages_of_one_kind() -> None:
    every = load_passages()
    kinds = {passage.kind for passage in every}
    for kind in kinds:
        assert load_passages(kind) == [passage for passage in every if passage.kind == kind]
    with pytest.raises(UnknownNameError, match="unknown kind of passage 'nope'"):
        load_passages("nope")
