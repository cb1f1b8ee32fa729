"""One small checkpoint per family, written and loaded once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orderlens.models.loading import load_model
from support import write_dense

FAMILIES = ("llada", "Dream", "sdar", "Fast_dLLM_Qwen")


class Small(NamedTuple):
    """A small checkpoint: its folder, tensors by published name, config.json, and the loaded model."""

    folder: Path
    tensors: dict[str, Any]
    config: dict[str, Any]
    model: Any


@pytest.fixture(scope="session")
def make_small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def make(family: str, **changes: Any) -> Small:
        folder = tmp_path_factory.mktemp("dense")
        options = {"tokenizer": False, **changes}
        if family == "Fast_dLLM_Qwen":
            options = {"mask_token_id": 99, **options}
        tensors = write_dense(folder, family=family, **options)
        config = json.loads((folder / "config.json").read_text())
        return Small(folder, tensors, config, load_model(str(folder), device="cpu"))

    return make


@pytest.fixture(scope="session", params=FAMILIES)
def small(request: pytest.FixtureRequest, make_small: Any) -> Small:
    """The default small checkpoint of every family, without a tokenizer."""
    return make_small(request.param)  # type: ignore[no-any-return]
