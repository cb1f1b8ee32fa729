"""Places and values that cannot work are refused with one line; nothing is left half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from orderlens import Sample, generate
from orderlens.errors import RunError, StorageError, UserInputError
from orderlens.runs.loop import execute
from orderlens.store import compact
from orderlens.store.compact import compact_run
from orderlens.store.folder import LocalFolder, open_folder
from orderlens.store.reader import open_run
from orderlens.store.records import hive_folder
from orderlens.store.verify import verify_run
from orderlens.store.writer import open_writer


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/", "root of the disk"),
        ("x" * 5000, "too long"),
        ("./" + "y" * 300, "too long"),
        ("nul\0byte", "cannot be a folder"),
        ("nosuch://bucket/run", "not the address of a folder"),
    ],
)
def test_places_that_cannot_hold_a_run(place, message, worker, tmp_path, monkeypatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    for action in (lambda: open_run(place), lambda: worker.compute(place, 1)):
        with pytest.raises(UserInputError, match=message) as caught:
            action()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_working_folder_is_said(tmp_path, worker, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RunError, match=r"run cannot be a folder: there is no such file"):
        worker.compute("run", 1)


def test_a_large_foreign_folder_is_refused_at_its_first_file(tmp_path, worker, monkeypatch) -> None:
    for number in range(50):
        (tmp_path / f"file-{number}").touch()
    seen: list[Path] = []
    plain = LocalFolder._walk

    def counted(self, under=""):
        for path in plain(self, under):
            seen.append(path)
            yield path

    monkeypatch.setattr(LocalFolder, "_walk", counted)
    with pytest.raises(RunError, match=r"not empty and not a run \(it contains file-"):
        worker.compute(str(tmp_path), 1)
    assert len(seen) == 1


def test_s3_without_credentials_is_one_line(monkeypatch, tmp_path) -> None:
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()  # of other tests, with their keys
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    folder = open_folder("s3://orderlens-no-such-bucket/run")
    folder._files.clear_instance_cache()
    for action in (
        lambda: folder.exists("x"),
        folder.sizes,
        lambda: folder.read("x"),
        lambda: folder.put("x", b""),
    ):
        with pytest.raises(StorageError, match=r"credentials") as caught:
            action()
        assert "\n" not in str(caught.value)


def test_specs_with_half_characters_or_endless_nesting_are_refused(tmp_path) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value, message in (
        ("\ud800", r"contains '\\ud800', an incomplete character"),
        (nested, "cannot be written"),
    ):
        with pytest.raises(UserInputError, match=message):
            open_writer(tmp_path / "run", {"name": value})
    assert not (tmp_path / "run").exists()


def long_named(worker, unit: int) -> dict[str, pa.Table]:
    """Return a unit whose ids, orders and tasks no file name can hold."""
    table = worker.reveals(unit)
    order = pa.array([f"{'長い' * 60}+{'x' * 300}={name}" for name in table["order"].to_pylist()])
    place = table.column_names.index("order")
    task = pa.array([f"{'/../' * 90}"] * table.num_rows)
    return {"reveals": table.set_column(place, "order", order).append_column("task", task)}


def test_names_longer_than_any_file_name_are_stored_compacted_and_found(
    tmp_path, worker, monkeypatch
) -> None:
    monkeypatch.setattr(compact, "PARTITION_ROWS", 1)
    keys = {f"{'k' * 300}-{unit}\n": unit for unit in range(3)}
    with open_writer(tmp_path / "run", worker.spec(3)) as writer:
        execute(writer, keys, lambda unit: long_named(worker, unit))
    before = open_run(tmp_path / "run").samples().to_arrow()
    compact_run(LocalFolder(tmp_path / "run"))
    run = open_run(tmp_path / "run")
    assert run.samples().to_arrow().equals(before)
    first = before.slice(0, 1).to_pylist()[0]
    assert len(run.trace(first["sample_id"], first["order"])) == 24
    assert verify_run(LocalFolder(tmp_path / "run")).ok
    assert hive_folder("order", "random") == "order=random"
    assert len(hive_folder("order", first["order"])) < 200


@pytest.mark.parametrize(("column", "value"), [("token_id", 2**40), ("seed", 2.5), ("position", "x")])
def test_values_that_no_column_can_hold_are_refused(tmp_path, worker, column, value) -> None:
    table = worker.reveals(0)
    wrong = table.set_column(table.column_names.index(column), column, pa.array([value] * table.num_rows))
    with (
        open_writer(tmp_path / "run", worker.spec(1)) as writer,
        pytest.raises(UserInputError, match=f"column '{column}' does not fit"),
    ):
        writer.commit("unit-0000", {"reveals": wrong})
    assert not (tmp_path / "run" / "units").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orders": [f"random:{2**63}"]}, "seed must have at most 18 digits"),
        ({"orders": ["random:" + "9" * 5000]}, "seed must have at most 18 digits"),
        ({"seed": 10**30}, "seed=1000"),
        ({"prompts": [Sample("\ud800", [1])]}, "not text"),
        ({"prompts": [Sample("a", [1], task="\udfff")]}, "not text"),
    ],
)
def test_names_and_seeds_that_no_column_can_hold_are_refused_before_decoding(change, message) -> None:
    arguments = {"prompts": [Sample("a", [1])], "orders": ["random"], "seed": 0, **change}
    with pytest.raises(UserInputError, match=message):
        generate("hmm", **arguments, max_new_tokens=2, temperature=1.0)


def test_the_largest_seeds_and_longest_ids_are_stored() -> None:
    run = generate(
        "hmm",
        [Sample("i" * 9000 + "\0\n", [1])],
        orders=["random:" + "9" * 18],
        seed=2**63 - 1,
        max_new_tokens=2,
        temperature=1.0,
    )
    (row,) = run.samples().to_arrow(["seed", "sample_seed"]).to_pylist()
    assert row == {"seed": 10**18 - 1, "sample_seed": 2**63 - 1}
