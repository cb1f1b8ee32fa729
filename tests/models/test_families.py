from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.models.family_index import BUILTIN, FAMILIES, Family, find_family, summary
from orderlens.models.loading import load_model


def folder_with(path: Path, config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "llada2_moe"}, "llada2_moe"),
        ({"model_type": "LLaDA2_MoE"}, "llada2_moe"),
        ({"architectures": ["orderlens"]}, "orderlens"),
        ({"model_type": None, "architectures": ["Other", "llada2_moe"]}, "llada2_moe"),
        ({"model_type": "Dream", "architectures": ["SDARForCausalLM"]}, "sdar"),
    ],
)
def test_a_family_is_found_by_what_the_file_says(tmp_path: Path, config: Any, family: str) -> None:
    assert find_family(folder_with(tmp_path, config)) == family


def test_a_family_that_the_file_does_not_name_is_found_by_its_detector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family("json:loads", "a test", detector=f"{__name__}:has_graph", aliases=("OtherName",))
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(has_graph=lambda config: "graph" in config))
    monkeypatch.setitem(BUILTIN, "detected", family)
    assert find_family(folder_with(tmp_path, {"graph": 1})) == "detected"
    assert find_family(folder_with(tmp_path, {"architectures": ["othername"]})) == "detected"
    assert find_family(folder_with(tmp_path, {"graph": 1, "model_type": "orderlens"})) == "orderlens"


def test_every_family_says_what_it_is() -> None:
    assert set(BUILTIN) <= set(FAMILIES.names())
    texts = [summary(name) for name in BUILTIN]
    assert texts == [family.summary for family in BUILTIN.values()]
    assert all(text and not text.startswith("plugin") for text in texts)
    assert summary("somebody's") == "plugin: model_type in config.json"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llada2_mo"}, "'llada2_mo' belongs to no known family; did you mean 'llada2_moe'"),
        ({"model_type": 7, "architectures": 8}, "neither model_type nor architectures"),
        ({}, "neither"),
    ],
)
def test_an_unknown_one_is_answered_with_those_supported(tmp_path: Path, config: Any, words: str) -> None:
    with pytest.raises(UnknownNameError, match=words) as caught:
        load_model(str(folder_with(tmp_path, config)))
    assert "(supported: orderlens, llada2_moe" in str(caught.value)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        load_model(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match="is a file"):
        load_model(str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        load_model(str(tmp_path))


def test_a_name_goes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path / "hmm", {})
    folder_with(tmp_path / "mine", {})
    assert load_model("hmm").name == "hmm"
    assert caplog.messages == [
        "'hmm' is both a model and a folder; using the model. For the folder write ./hmm"
    ]
    for spec in ("./hmm", "mine"):
        with pytest.raises(UnknownNameError, match="neither model_type"):
            load_model(spec)
