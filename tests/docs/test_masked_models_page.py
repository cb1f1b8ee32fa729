"""The page on masked models: its table names the families, its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

from orderlens.errors import ModelLoadError
from orderlens.models.family_index import BUILTIN
from orderlens.models.loading import load_model
from support import write_mdlm, write_sedd
from support.pages import section

PAGE = section("models", "MDLM, BD3-LM, SEDD, XLNet, BERT")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_families_are_those_of_the_registry() -> None:
    for name in ("mdlm", "bd3lm", "xlnet", "bert", "modernbert", "roberta"):
        assert f"`model_type: {name}`" in PAGE or f"`{name}`" in PAGE
        assert name in BUILTIN


def test_another_noise_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sedd(tmp_path / "sedd-small")
    found: dict[str, object] = {}
    exec(BLOCKS[0], found)
    model = found["model"]
    assert model.facts.size.sigmas == (0.5, 0.5)  # type: ignore[attr-defined]


def test_pickled_weights_are_refused_with_the_remedy_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = write_mdlm(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pickled weights are not read.*docs/models\.md"):
        load_model(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[1], {})
    assert load_model(str(tmp_path)).log_probs([1, 98]).shape == (2, 99)
