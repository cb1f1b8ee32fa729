"""``orderlens doctor --model``: what to expect of a checkpoint, from its files' headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orderlens.cli.main import main
from orderlens.models.engine import device as fit

Make = Callable[..., tuple[Path, dict[str, Any]]]


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["doctor", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code, text, _ = doctor(capsys, *arguments, "--json")
    return code, json.loads(text)


def test_a_local_checkpoint(capsys: pytest.CaptureFixture[str], checkpoint: Any) -> None:
    code, found = report(capsys, "--model", str(checkpoint[0]))
    assert code == 0
    weights = sum(tensor.numel() for tensor in checkpoint[1].values())
    about = found["model"]
    assert (about["parameters"], about["dtype"], about["problem"]) == (weights, "float32", None)
    assert about["devices"][0]["device"] == "cpu"
    assert set(about["devices"][0]["batch"]) == {"160"}  # it has 512 positions
    code, text, _ = doctor(capsys, "--model", str(checkpoint[0]))
    assert code == 0
    assert "3 complete weight files" in text
    assert "memory-mapped on the CPU" in text


def test_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str], make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    (folder / "model-00002-of-00003.safetensors").unlink()
    code, text, _ = doctor(capsys, "--model", str(folder))
    assert code == 2
    assert "problem: " in text
    assert "model-00002-of-00003.safetensors" in text
    assert "memory-mapped on the CPU" in text


def test_a_folder_with_the_configuration_alone(
    capsys: pytest.CaptureFixture[str], checkpoint: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint[0] / "config.json").read_bytes())
    code, found = report(capsys, "--model", str(tmp_path))
    assert (code, found["model"]["problem"], found["model"]["source"]) == (0, None, "config.json")
    assert found["model"]["parameters"] == sum(tensor.numel() for tensor in checkpoint[1].values())
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    code, found = report(capsys, "--model", str(tmp_path))
    assert (code, "pickled weights are not read" in found["model"]["problem"]) == (2, True)


def test_smaller_and_larger_gpus(
    capsys: pytest.CaptureFixture[str], checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [{"name": "cpu"}, {"name": "cuda:0 (small)"}, {"name": "cuda:1 (large)"}, {"name": "mps"}]
    free = {"cpu": 64e9, "cuda:0": 24e9, "cuda:1": 80e9, "mps": 36e9}
    monkeypatch.setattr("orderlens.cli.doctor._devices", lambda: devices)
    monkeypatch.setattr(fit, "free_bytes", lambda device: int(free[str(device)]))
    code, found = report(capsys)
    assert code == 0
    lines = found["expect"]
    assert len(lines) == 5
    assert "memory-mapped" in lines[1]
    assert "do not fit on cuda:0" in lines[2]
    assert "fit on cuda:1" in lines[3]
    assert found["estimates"][2]["batch"]["160"] == 1024
    assert max(map(len, lines)) < 130
    assert "fit on mps" in lines[4]


def test_experts_in_8_bits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, make_checkpoint: Make
) -> None:
    """On a GPU both formats are estimated; experts that are stored in 8 bits have no other."""
    monkeypatch.setattr("orderlens.cli.doctor._devices", lambda: [{"name": "cpu"}, {"name": "cuda:0 (one)"}])
    monkeypatch.setattr(fit, "free_bytes", lambda _: int(24e9))
    folder, tensors = make_checkpoint()
    about = report(capsys, "--model", str(folder))[1]["model"]
    assert [item["device"] for item in about["devices"]] == ["cpu", "cuda:0", "cuda:0"]
    plain, small = (item["weights_gb"] for item in about["devices"][1:])
    experts = [tensor for name, tensor in tensors.items() if "expert" in name and tensor.ndim == 2]
    saved = 3e-9 * sum(tensor.numel() for tensor in experts)  # from float32 to 8 bits, less the scales
    assert plain - saved < small < plain - 0.8 * saved
    assert "--weights fp8: " in about["devices"][2]["line"]
    assert {gpu["weights"] for gpu in about["gpus"]} == {"float32", "fp8"}
    assert not any(gpu["gpu"].startswith("cuda") for gpu in about["gpus"])  # no data sheet of this one
    path = folder / "config.json"
    stored = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": stored}))
    for shard in folder.glob("*.safetensors*"):  # config.json alone
        shard.unlink()
    about = report(capsys, "--model", str(folder))[1]["model"]
    assert [item["weights_gb"] for item in about["devices"]] == [small, small]
    assert "--weights" not in about["devices"][1]["line"]
    assert {gpu["weights"] for gpu in about["gpus"]} == {"fp8"}


def test_a_hub_model_without_the_hub(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name, parameters in (("LLaDA2.1-mini", 16.26), ("LLaDA2.0-flash", 102.9)):
        code, found = report(capsys, "--model", f"hf:inclusionAI/{name}")
        assert code == 2
        assert "not in the local cache" in found["model"]["problem"]
        assert found["model"]["parameters"] / 1e9 == pytest.approx(parameters, abs=0.05)
    code, _, error = doctor(capsys, "--model", "hf:org/other")
    assert code == 2
    assert error.startswith("orderlens: model 'hf:org/other' is not in the local cache")
    assert error.count("\n") == 1


def test_only_the_configuration_of_a_hub_model_is_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, checkpoint: Any, tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    commit, repo = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "config.json").write_bytes((checkpoint[0] / "config.json").read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    code, found = report(capsys, "--model", "hf:org/name")
    assert code == 0
    assert found["model"]["source"] == "config.json"
    assert found["model"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("hm", "did you mean 'hmm'"),
        ("./nowhere", "model folder 'nowhere' does not exist; give a folder"),
        (__file__, "is a file; give a folder in the Hugging Face layout"),
        (str(Path(__file__).parent), "has no config.json"),
    ],
)
def test_what_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str], spec: str, words: str) -> None:
    code, _, error = doctor(capsys, "--model", spec)
    assert code == 2
    assert words in error


def test_other_families_are_small(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "orderlens"}))
    for spec in ("tiny", "hmm:incoherence=0.1", str(tmp_path)):
        code, found = report(capsys, "--model", spec)
        assert code == 0
        assert "on the CPU" in found["expect"][0]


def test_devices_are_named_as_torch_does() -> None:
    from orderlens.cli.doctor import _places

    names = [{"name": "cpu"}, {"name": "cuda:1 (NVIDIA Something 80GB)"}]
    assert [torch.device(name) for name in _places(names)] == [torch.device("cpu"), torch.device("cuda:1")]
