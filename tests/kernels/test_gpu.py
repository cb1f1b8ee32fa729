"""What a GPU offers, by its compute capability, and which ones run our kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from orderlens.kernels import gpu


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch):
    """Return a function that pretends a GPU of some compute capability."""

    def pretend(major: int, minor: int = 0, hip: str | None = None) -> torch.device:
        about = SimpleNamespace(major=major, minor=minor, multi_processor_count=108)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(gpu, "triton_installed", lambda: True)
        gpu._properties.cache_clear()
        gpu.runs_kernels.cache_clear()
        return torch.device("cuda:0")

    yield pretend
    gpu._properties.cache_clear()
    gpu.runs_kernels.cache_clear()


def test_what_tiles_were_chosen_on(present) -> None:
    hopper = gpu.gpu_of(present(9))._replace(processors=132)
    assert hopper._replace(specialises=True) == gpu.HOPPER
    assert hopper.specialises == gpu.is_known_gluon()
    assert gpu.gpu_of(torch.device("cpu")) == gpu.HOPPER._replace(processors=2, specialises=False)


@pytest.mark.parametrize(
    ("version", "known"), [("3.6.0", True), ("3.7.1", True), ("3.5.1", False), ("4.6.0", False)]
)
def test_gluon_of_known_versions(version: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.is_known_gluon.cache_clear()
    monkeypatch.setattr(gpu.metadata, "version", lambda _: version)
    assert gpu.is_known_gluon() == known
    gpu.is_known_gluon.cache_clear()


@pytest.mark.parametrize(
    ("capability", "kib", "descriptors"),
    [
        ((8, 0), 163, False),
        ((8, 6), 99, False),
        ((8, 9), 99, False),
        ((10, 0), 227, True),
        ((12, 0), 99, True),
    ],
)
def test_other_gpus(present, capability: tuple[int, int], kib: int, descriptors: bool) -> None:
    assert gpu.gpu_of(present(*capability)) == gpu.Gpu(kib * 1024, descriptors, 108, False)


def test_tensors_without_memory_stand_for_the_current_gpu(present, monkeypatch: pytest.MonkeyPatch) -> None:
    present(9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(major=8 + device.index, minor=0, multi_processor_count=108),
    )
    for current in (0, 1):  # two kinds of GPU in one machine
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert gpu.gpu_of(torch.device("meta")) == gpu.gpu_with((8 + current, 0), 108)


def test_kernels_need_an_nvidia_gpu_from_ampere_on(present, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.runs_kernels(present(8))
    assert not gpu.runs_kernels(present(7, 5))
    assert not gpu.runs_kernels(present(9, 4, hip="6.4"))
    assert not gpu.runs_kernels(torch.device("cpu"))
    device = present(9)
    monkeypatch.setattr(gpu, "triton_installed", lambda: False)
    assert not gpu.runs_kernels(device)
