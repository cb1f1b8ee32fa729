"""Failed attempts: counted per unit, set aside at the limit, forgotten on request."""

from __future__ import annotations

import pytest

from orderlens.runs.worker_log import Failures, read_failures
from orderlens.store.folder import open_folder
from orderlens.store.records import FAILED, failed_stem, failure_file, stem

KEYS = ("abc", "with.dots", "a/slash", "x" * 300)


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path)


@pytest.mark.parametrize("key", KEYS)
def test_a_unit_is_set_aside_at_the_limit(folder, key):
    failures = Failures(folder, 2)
    assert failures.record(key, "bad", "w0").attempt == 0
    assert failures.set_aside() == set()
    assert failures.record(key, "worse", "w1", "trace", ("a", "b")).attempt == 1
    assert failures.set_aside() == {stem(key)}
    assert Failures(folder, 3).set_aside() == set()
    found = read_failures(folder)
    assert [(item.key, item.error, item.worker) for item in found] == [
        (key, "bad", "w0"),
        (key, "worse", "w1"),
    ]
    assert (found[1].traceback, found[1].samples) == ("trace", ("a", "b"))
    failures.clear()
    assert read_failures(folder) == []
    assert failures.record(key, "bad", "w0").attempt == 0


@pytest.mark.parametrize("key", KEYS)
def test_names_of_records_tell_their_unit(key):
    assert failed_stem(failure_file(key, 11)) == stem(key)


@pytest.mark.parametrize("name", ["units/abc.0.json", f"{FAILED}/abc.0.txt", f"{FAILED}abc.0.json"])
def test_other_files_are_no_records(name):
    assert failed_stem(name) is None


def test_two_workers_that_note_at_once_both_count(folder, monkeypatch):
    first, second = Failures(folder, 2), Failures(folder, 2)
    monkeypatch.setattr(second, "_counts", dict)  # it has not seen the other's record yet
    first.record("u", "one", "w0")
    assert second.record("u", "two", "w1").attempt == 1
    assert first.set_aside() == {stem("u")}


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b'{"key": "u"}', b"\xff", b'{"samples": 3}'])
def test_a_record_that_cannot_be_read_is_left_out_but_counts(folder, data):
    folder.put(failure_file("u", 0), data)
    assert read_failures(folder) == []
    assert Failures(folder, 1).set_aside() == {stem("u")}
