"""Folders that are no adapter are refused in one line that says which file is wrong."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("safetensors")

from orderlens.errors import ModelLoadError
from orderlens.models.smol.adapter import SETTINGS, load_adapter


@pytest.mark.parametrize("record", ["{", "[]", "{}", json.dumps({"shards": "two"})])
def test_a_record_that_says_nothing_is_refused(tmp_path, record):
    (tmp_path / SETTINGS).write_text(record, encoding="utf-8")
    with pytest.raises(ModelLoadError, match="not an adapter's record"):
        load_adapter(tmp_path)


def test_a_folder_without_a_record_is_no_adapter(tmp_path):
    with pytest.raises(ModelLoadError, match=f"no {SETTINGS}; not an adapter folder"):
        load_adapter(tmp_path)
