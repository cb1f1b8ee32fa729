from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderlens.errors import ModelLoadError, UnknownNameError
from orderlens.models.families import find_family
from orderlens.models.loading import load_model


def folder_with(path: Path, config: Any) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "llada2_moe"}, "llada2_moe"),
        ({"model_type": "LLaDA2_MoE"}, "llada2_moe"),
        ({"architectures": ["orderlens"]}, "orderlens"),
        ({"model_type": None, "architectures": ["Other", "llada2_moe"]}, "llada2_moe"),
    ],
)
def test_a_family_is_found_by_what_the_file_says(tmp_path: Path, config: Any, family: str) -> None:
    assert find_family(folder_with(tmp_path, config)) == family


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llada2"}, "'llada2' is of no known family; did you mean 'llada2_moe'"),
        ({"model_type": 7, "architectures": "x"}, "neither model_type nor architectures"),
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
