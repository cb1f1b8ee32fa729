from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from orderlens.errors import CorruptRunError, ModelOutputError, RunError, UserInputError
from orderlens.runs.loop import execute
from orderlens.store.folder import LocalFolder
from orderlens.store.reader import open_run
from orderlens.store.records import digest_of, load_snapshot, read_completion, stem
from orderlens.store.writer import open_writer


def test_resume_computes_only_what_is_missing_and_gives_the_same_rows(tmp_path, worker, content) -> None:
    class StopError(Exception):
        pass

    computed: list[int] = []

    def interrupted(unit: int):
        if len(computed) == 3:
            raise StopError
        computed.append(unit)
        return worker.tables(unit)

    folder = tmp_path / "run"
    with pytest.raises(StopError), open_writer(folder, worker.spec(6)) as writer:
        execute(writer, worker.keyed_units(6), interrupted)
    assert not open_run(folder).is_complete
    again: list[int] = []
    with open_writer(folder, worker.spec(6)) as writer:
        execute(writer, worker.keyed_units(6), lambda unit: again.append(unit) or worker.tables(unit))
    assert sorted(computed + again) == list(range(6))
    assert open_run(folder).is_complete
    worker.compute(str(tmp_path / "straight"), 6)
    assert content(folder) == content(tmp_path / "straight")
    assert parts_of(folder) == parts_of(tmp_path / "straight")


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_do_not_depend_on_the_number_of_workers(tmp_path, worker, content, straight, workers) -> None:
    def work() -> None:
        with open_writer(tmp_path / "run", worker.spec(8)) as writer:
            execute(writer, worker.keyed_units(8), worker.tables)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(tmp_path / "run") == content(straight(8))
    assert parts_of(tmp_path / "run") == parts_of(straight(8))


def test_a_different_spec_is_refused_field_by_field(tmp_path, worker) -> None:
    open_writer(
        tmp_path, {"model": {"name": "tiny", "digest": "ab"}, "seed": 0, "orders": ["random"]}
    ).close()
    with pytest.raises(RunError) as caught:
        open_writer(tmp_path, {"model": {"name": "tiny", "digest": "cd"}, "orders": ["random"], "extra": 1})
    message = str(caught.value)
    assert "model.digest: the run has 'ab', requested 'cd'" in message
    assert "seed: the run has 0, requested no value" in message
    assert "extra: the run has no value, requested 1" in message
    assert "orders" not in message
    assert "\n" not in message
    with pytest.raises(RunError, match="another spec: kind: the run has no value, requested 'import'; use"):
        open_writer(tmp_path, {"model": {"name": "hmm"}, "kind": "import", "seed": 0, "orders": ["random"]})
    with pytest.raises(RunError, match="another spec: seed: the run has 0, requested 1; use another folder"):
        open_writer(
            tmp_path,
            {
                "model": {"name": "tiny", "digest": "ab"},
                "seed": 1,
                "orders": ["random"],
                "chat": False,
                "likelihood": {"random": "exact"},
            },
        )
    with pytest.raises(RunError) as caught:
        open_writer(tmp_path, {"model": {"name": "hmm", "digest": "cd"}, "seed": 0, "orders": ["random"]})
    assert str(caught.value).endswith(
        "another spec: model.name: the run has 'tiny', requested 'hmm'; use another folder"
    )


def test_a_spec_edited_by_hand_is_refused_when_writing_and_reading(finished, worker) -> None:
    path = finished / "spec.json"
    body = json.loads(path.read_text())
    body["spec"]["units"] = 7
    path.write_text(json.dumps(body))
    with pytest.raises(CorruptRunError, match=r"edited.*units: the run has 7, requested 6.*undo the edit"):
        worker.compute(str(finished), 6)
    with pytest.raises(CorruptRunError, match="edited"):
        worker.compute(str(finished), 7)  # even if the edit matches the request: the rows do not
    with pytest.raises(CorruptRunError, match="edited"):
        open_run(finished)


def test_provenance_may_differ_on_resume(finished, worker, content) -> None:
    path = finished / "spec.json"
    body = json.loads(path.read_text())
    body["provenance"] = {"versions": {"orderlens": "0.0.1"}}
    del body["digest"]
    path.write_text(json.dumps(body | {"digest": digest_of(body)}))
    before = content(finished)
    worker.compute(str(finished), 6)
    assert content(finished) == before


def test_the_spec_says_what_where_and_with_which_versions(finished) -> None:
    body = json.loads((finished / "spec.json").read_text())
    assert body["schema_version"] == "1.0"
    assert body["spec"]["kind"] == "score"
    assert {"versions", "hardware", "git", "time"} <= set(body["provenance"])
    assert str(finished) not in (finished / "spec.json").read_text()


def test_only_the_first_commit_of_a_unit_counts(tmp_path, worker) -> None:
    one, two = (open_writer(tmp_path, worker.spec(1)) for _ in range(2))
    assert one.commit("unit-0000", worker.tables(0))
    assert not two.commit("unit-0000", worker.tables(5))
    one.finish(["unit-0000"])
    assert set(open_run(tmp_path).samples().to_pandas()["sample_id"]) == {"s0000-0", "s0000-1"}
    assert len(list(tmp_path.rglob("*.parquet"))) == 2  # the loser's parts are gone
    one.close()
    two.close()


def test_a_commit_shows_only_with_its_record(tmp_path, worker) -> None:
    with open_writer(tmp_path, worker.spec(2)) as writer:
        writer.commit("unit-0000", worker.tables(0))
        writer.commit("unit-0001", worker.tables(1))
        (tmp_path / "units" / "unit-0001.json").unlink()
        assert set(open_run(tmp_path).reveals().to_pandas()["sample_id"]) == {"s0000-0", "s0000-1"}
        assert writer.pending(["unit-0000", "unit-0001", "unit-0001"]) == ["unit-0001"]


def test_a_truncated_record_counts_as_not_committed_and_is_replaced(tmp_path, worker, content) -> None:
    with open_writer(tmp_path / "run", worker.spec(2)) as writer:
        writer.commit("unit-0000", worker.tables(0))
    record = tmp_path / "run" / "units" / "unit-0000.json"
    record.write_bytes(record.read_bytes()[:40])
    worker.compute(str(tmp_path / "run"), 2)
    worker.compute(str(tmp_path / "reference"), 2)
    assert content(tmp_path / "run") == content(tmp_path / "reference")


def test_finish_refuses_missing_units_and_writes_no_completion(tmp_path, worker) -> None:
    with open_writer(tmp_path, worker.spec(2)) as writer:
        writer.commit("unit-0000", worker.tables(0))
        with pytest.raises(RunError, match=r"1 of 2 units are missing \(unit-0001\)"):
            writer.finish(["unit-0000", "unit-0001"])
    assert read_completion(LocalFolder(tmp_path)) is None


def test_more_units_can_be_added_after_finishing(finished, worker) -> None:
    verdicts = pa.table({"sample_id": ["s0000-0"], "order": ["random"], "task": ["t"], "correct": [True]})
    with open_writer(finished, worker.spec(6)) as writer:
        execute(writer, {"grade-1": 1}, lambda unit: {"verdicts": verdicts})
    run = open_run(finished)
    assert run.is_complete
    assert len(run.table("verdicts")) == 1
    assert len(run.outputs()) == 24
    assert len(read_completion(LocalFolder(finished)) or []) == 7


def test_failing_work_gives_its_claim_back(tmp_path, worker) -> None:
    def fail(unit: int):
        raise ZeroDivisionError

    with open_writer(tmp_path, worker.spec(1)) as writer:
        with pytest.raises(ZeroDivisionError):
            execute(writer, {"u": 1}, fail)
        with open_writer(tmp_path, worker.spec(1)) as other:
            claim = other.claim("u")
            assert claim
            claim.release()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"logq": [0.5, -1.0]}, ModelOutputError, "logq = 0.5"),
        ({"logq": [float("nan"), -1.0]}, ModelOutputError, "logq = nan"),
        ({"step": [0, 2]}, UserInputError, "step 2 instead of 1"),
        ({"step": [1, 2]}, UserInputError, "step 1 instead of 0"),
        ({"position": [4, 4]}, UserInputError, "position 4 is revealed twice"),
        ({"logq": ["a", "b"]}, UserInputError, "'logq' does not fit"),
        ({"sample_id": ["s", None]}, UserInputError, "nulls in the required column"),
    ],
)
def test_impossible_rows_are_refused_before_they_are_stored(tmp_path, worker, change, error, words) -> None:
    good = {
        "sample_id": ["s", "s"],
        "order": ["random"] * 2,
        "block": [0, 0],
        "step": [0, 1],
        "position": [3, 4],
    }
    table = pa.table({**good, "token_id": [1, 2], "logq": [-1.0, -2.0], **change})
    with open_writer(tmp_path, worker.spec(1)) as writer:
        with pytest.raises(error, match=words):
            writer.commit("u", {"reveals": table})
        assert writer.pending(["u"]) == ["u"]


def test_a_missing_column_and_a_bad_table_name_are_named(tmp_path, worker) -> None:
    with open_writer(tmp_path, worker.spec(1)) as writer:
        with pytest.raises(UserInputError, match=r"lacks the required column.*logq"):
            writer.commit("u", {"reveals": worker.reveals(0).drop_columns(["logq"])})
        with pytest.raises(UserInputError, match="cannot be a table name"):
            writer.commit("u", {"../x": pa.table({"a": [1]})})


def test_other_tables_are_kept_as_they_are(tmp_path, worker) -> None:
    extra = pa.table({"sample_id": ["a"], "order": ["random"], "gamma": [0.25], "i": [3]})
    with open_writer(tmp_path, worker.spec(1)) as writer:
        writer.commit("u", {"circulation": extra, "my_numbers": pa.table({"x": [1, 2]})})
    run = open_run(tmp_path)
    assert run.table("circulation").to_arrow(["gamma", "i"]).to_pylist() == [{"gamma": 0.25, "i": 3}]
    assert run.table("my_numbers").to_arrow().to_pydict() == {"x": [1, 2]}
    pytest.importorskip("duckdb")
    assert run.sql("SELECT sum(x) AS s FROM my_numbers").to_arrow().to_pylist() == [{"s": 3}]


def test_a_folder_with_other_files_and_a_file_are_refused(tmp_path, worker) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"not empty and not a run \(it contains notes\.txt\)"):
        open_writer(tmp_path, worker.spec(1))
    with pytest.raises(RunError, match="is a file, not a folder"):
        open_writer(tmp_path / "notes.txt", worker.spec(1))


def test_a_spec_must_be_plain_json(tmp_path) -> None:
    with pytest.raises(UserInputError, match="cannot be written as JSON"):
        open_writer(tmp_path, {"x": object()})
    with open_writer(tmp_path, {"x": (1, 2), "y": np.float64(0.5), "z": {"b", "a"}}) as writer:
        assert writer.spec == {"x": [1, 2], "y": 0.5, "z": ["a", "b"]}
    open_writer(tmp_path, {"x": [1, 2], "y": 0.5, "z": ["a", "b"]}).close()


def test_file_names_of_odd_keys_are_safe() -> None:
    keys = ["a/b", "a%2Fb", "A", "a", "..", "x" * 300, "x" * 301, "é", "merged~1", "a b"]
    stems = [stem(key) for key in keys]
    assert len({name.lower() for name in stems}) == len(keys)
    assert all("/" not in name and len(name) < 130 and not name.startswith(".") for name in stems)


def test_odd_unit_keys_work(tmp_path, worker) -> None:
    units = {"task a/β": 0, "Task A/β": 1, "..": 2}
    with open_writer(tmp_path, worker.spec(3)) as writer:
        execute(writer, units, worker.tables)
        assert writer.pending(units) == []
    assert load_snapshot(LocalFolder(tmp_path)).unit_keys() == set(units)
    assert open_run(tmp_path).is_complete
