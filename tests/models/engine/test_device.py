from __future__ import annotations

import pytest
import torch

from orderlens.errors import UserInputError
from orderlens.models.engine.device import dtype_name, pick_device, pick_dtype, with_index


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two CUDA GPUs and no MPS."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("gpus")
def test_the_best_device_and_the_wanted_one() -> None:
    assert pick_device() == pick_device("auto") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cpu") == torch.device("cpu")
    assert with_index(torch.device("cuda")) == torch.device("cuda:1")
    assert with_index(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda:2", "sees 2 CUDA"),
        ("mps", "not available"),
        ("meta", "unknown"),
        ("gpu", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_device_that_is_not_there_is_named(name: str, words: str) -> None:
    with pytest.raises(UserInputError, match=words) as caught:
        pick_device(name)
    assert f"device '{name}'" in str(caught.value)


def test_apple_is_preferred_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device() == torch.device("cpu")
    assert pick_device(prefer=("cuda", "mps")) == torch.device("mps")
    with pytest.raises(UserInputError, match="no CUDA GPU is visible"):
        pick_device("cuda")


def test_dtypes() -> None:
    assert pick_dtype(None, torch.float32) is pick_dtype("auto", torch.float32) is torch.float32
    assert pick_dtype("float16", torch.float32) is torch.float16
    assert dtype_name(torch.bfloat16) == "bfloat16"
    with pytest.raises(UserInputError, match="allowed are auto, float32"):
        pick_dtype("float16", torch.float32, ("float32",))
