"""Places that a user names on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderlens.errors import UserInputError
from orderlens.runs.options import local_place, run_place


def test_a_tilde_behind_an_equals_sign_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere/home")
    assert local_place("~/runs/a") == Path("/somewhere/home/runs/a")
    assert run_place("~/runs/a") == "/somewhere/home/runs/a"
    assert run_place("s3://bucket/~/a") == "s3://bucket/~/a"
    assert local_place("runs/~a") == Path("runs/~a")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (" ", "is empty; name a file or folder"),
        ("/", "the root of the file system"),
        ("s3://bucket/a", "is an address"),
        ("a\0b", "contains a NUL character"),
        ("~nobody-has-this-name/a", "cannot be reached"),
    ],
)
def test_places_that_cannot_be_meant_are_refused(place: str, told: str) -> None:
    with pytest.raises(UserInputError, match=told):
        local_place(place)
