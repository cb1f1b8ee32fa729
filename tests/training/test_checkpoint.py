"""Checkpoints hold plain data and tensors, whole or not at all."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from orderlens.errors import ModelLoadError  # noqa: E402
from orderlens.training.steps import load_checkpoint, save_checkpoint  # noqa: E402


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    state = {"step": 3, "weights": {"a": torch.arange(4.0)}, "phases": [{"start": 0, "shards": {"t": ["x"]}}]}
    save_checkpoint(path, state)
    found = load_checkpoint(path)
    assert torch.equal(found["weights"]["a"], state["weights"]["a"])
    assert (found["step"], found["phases"], found["format"]) == (3, state["phases"], 1)
    save_checkpoint(path, {"step": 4})
    assert load_checkpoint(path)["step"] == 4
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]


class Hostile:
    def __reduce__(self):
        return (Path.touch, (Path("hostile-was-run"),))


def test_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 1, "step": Hostile()}, tmp_path / "c.pt")
    (tmp_path / "d.pt").write_bytes(pickle.dumps(Hostile()))
    for name in ("c.pt", "d.pt"):
        with pytest.raises(ModelLoadError, match="not a training checkpoint"):
            load_checkpoint(tmp_path / name)
    assert not (tmp_path / "hostile-was-run").exists()


def test_faults_are_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no checkpoint here; start training without --resume"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save({"format": 9}, tmp_path / "new.pt")
    with pytest.raises(ModelLoadError, match="checkpoint format 9, expected 1"):
        load_checkpoint(tmp_path / "new.pt")
    save_checkpoint(tmp_path / "whole.pt", {"step": 1, "w": torch.zeros(100)})
    data = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "half.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelLoadError, match="not a training checkpoint"):
        load_checkpoint(tmp_path / "half.pt")


def test_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        save_checkpoint(path, {"step": 2, "bad": lambda: None})
    assert load_checkpoint(path)["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]
