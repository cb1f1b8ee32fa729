"""Runs of another schema are refused in one line by every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderlens.errors import CorruptRunError, RunError
from orderlens.store.folder import LocalFolder
from orderlens.store.overview import overview
from orderlens.store.reader import open_run
from orderlens.store.records import digest_of
from orderlens.store.verify import verify_run


def with_version(folder: Path, version: str, *, sealed: bool = True) -> None:
    """Give a run another schema version, as another version of this package would have written it."""
    body = json.loads((folder / "spec.json").read_text())
    body = {**body, "schema_version": version}
    del body["digest"]
    (folder / "spec.json").write_text(json.dumps(body | ({"digest": digest_of(body)} if sealed else {})))


@pytest.mark.parametrize(
    ("version", "sealed"), [("0.1", True), ("1.1", True), ("2.0", True), ("1.0", False), ("1.1", False)]
)
def test_other_schemas_are_refused(finished, worker, version, sealed) -> None:
    """Version 1.0 without a seal is what was written before the first release."""
    with_version(finished, version, sealed=sealed)
    message = rf"another version of orderlens \(schema {version}\); this version reads only 1\.0.*new folder"
    for action in (
        lambda: open_run(finished),
        lambda: verify_run(LocalFolder(finished)),
        lambda: worker.compute(str(finished), 6),
    ):
        with pytest.raises(RunError, match=message) as caught:
            action()
        assert "\n" not in str(caught.value)
    assert overview(LocalFolder(finished))["state"] == "unreadable"


def test_a_version_that_was_damaged_is_told_as_damage(finished) -> None:
    text = (finished / "spec.json").read_text()
    (finished / "spec.json").write_text(text.replace('"schema_version": "1.0"', '"schema_version": "1.4"'))
    with pytest.raises(CorruptRunError, match=r"spec.json is damaged \('schema_version' has changed\)"):
        open_run(finished)
