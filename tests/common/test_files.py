"""Files are written whole or not at all, and a refusal is one line with its remedy."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orderlens.common.files import make_folder, refusal, replacing, storing, write_text
from orderlens.errors import StorageError, UserInputError


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "new" / "table.txt"
    write_text(path, "one")
    write_text(path, "zwei")
    assert path.read_text(encoding="utf-8") == "zwei"
    assert names(path.parent) == ["table.txt"]


def names(folder):
    return [item.name for item in folder.iterdir()]


def fail_half_way(path, error):
    with replacing(path) as fresh:
        fresh.write_text("half")
        raise error


def test_a_failure_keeps_what_was_there(tmp_path):
    path = write_text(tmp_path / "table.txt", "before")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(path, KeyboardInterrupt())
    with pytest.raises(StorageError, match=r"table\.txt: the disk is full"):
        fail_half_way(path, OSError(errno.ENOSPC, "No space left on device"))
    assert path.read_text(encoding="utf-8") == "before"
    assert names(tmp_path) == ["table.txt"]


def test_links_are_followed_and_devices_are_written_to(tmp_path):
    target = write_text(tmp_path / "target.txt", "before")
    link = tmp_path / "link.txt"
    link.symlink_to(target)
    write_text(link, "after")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "after"
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_text(fifo, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_full_device_is_one_line(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    link = tmp_path / "full.txt"
    link.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="the disk is full"):
        write_text(link, "text")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 300, "the name is too long"),
        ("there/below.txt", "a part of the path is a file"),
        ("folder", "it is a folder; name a file"),
        ("a\0b", "no file can have this name"),
    ],
)
def test_impossible_names_are_the_users(tmp_path, name, message):
    write_text(tmp_path / "there", "a file")
    make_folder(tmp_path / "folder")
    with pytest.raises(UserInputError, match=message):
        write_text(tmp_path / name, "text")


def test_lone_surrogates_do_not_stop_a_page(tmp_path):
    assert write_text(tmp_path / "page.md", "a\udc80b").read_text(encoding="utf-8") == "a\ufffdb"


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "read-only or belongs"),
        (errno.ENAMETOOLONG, "too long"),
        (errno.EMFILE, "ulimit"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_refusals_name_a_remedy(number, word):
    with pytest.raises((StorageError, UserInputError), match=word), storing("f"):
        raise OSError(number, os.strerror(number))
    assert word in refusal(OSError(number, os.strerror(number)))


def test_what_a_killed_process_left_is_swept_and_a_living_one_is_not(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    dead, alive = (
        tmp_path / f".orderlens-{pid}-0123456789ab.json" for pid in (int(done.stdout), os.getpid())
    )
    dead.write_text("half")
    alive.write_text("half")
    write_text(tmp_path / "a.json", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, "a.json"])
