from __future__ import annotations

import sys

import pytest

from orderlens import machine


def test_memory_is_known() -> None:
    free, total = machine.free_memory(), machine.total_memory()
    assert free is not None
    assert total is not None
    assert 2**20 < free <= total


def test_without_psutil_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert machine.free_memory() is machine.total_memory() is None
