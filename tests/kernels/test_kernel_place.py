"""Where kernels are tested: the interpreter unless there is a GPU, and always where it is asked for."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from support import kernel_place  # noqa: E402


@pytest.mark.parametrize(
    ("gpu", "setting", "interpreted"),
    [(False, None, True), (True, None, False), (True, "1", True), (True, "0", False)],
)
def test_the_place(gpu, setting, interpreted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if setting is not None:
        monkeypatch.setenv("TRITON_INTERPRET", setting)
    place = kernel_place()
    wanted = (True, "cpu", torch.float32) if interpreted else (False, "cuda", torch.bfloat16)
    assert (place.interpreted, place.device.type, place.dtype) == wanted
    assert os.environ.get("TRITON_INTERPRET") == ("1" if interpreted else setting)
