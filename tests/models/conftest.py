"""Small checkpoints, written once and read by the tests of LLaDA-2 and of the parts it shares."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support import write_llada2

if find_spec("torch") is None:
    collect_ignore = ["decoder", "dit", "engine", "families"]  # these need torch throughout


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, dict[str, Any]]]:
    """Return a function that writes a checkpoint to a fresh folder: (folder, tensors)."""

    def make(**changes: Any) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("checkpoint")
        return folder, write_llada2(folder, **changes)

    return make


@pytest.fixture(scope="session")
def checkpoint(make_checkpoint: Callable[..., Any]) -> tuple[Path, dict[str, Any]]:
    """The default small checkpoint; read-only."""
    return make_checkpoint()  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def model(checkpoint: tuple[Path, dict[str, Any]]) -> Any:
    """The default small model, float32 on the CPU."""
    from orderlens.models.families.llada2 import load_llada2

    return load_llada2(checkpoint[0], device="cpu")
