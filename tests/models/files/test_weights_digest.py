"""A network made in memory, without files to hash, is identified by its tensors."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.errors import RunError
from orderlens.models.files.checkpoint import tensors_digest
from orderlens.testing import small_model

torch = pytest.importorskip("torch")


def test_digests_follow_tensors_names_shapes_and_settings() -> None:
    made = {"a": torch.arange(6.0), "b": (torch.ones(2), None)}
    others = [
        {"a": torch.arange(6.0).reshape(2, 3), "b": (torch.ones(2), None)},
        {"a": torch.arange(6.0), "c": (torch.ones(2), None)},
        {"a": torch.arange(6.0), "b": (torch.zeros(2), None)},
        {"a": torch.arange(6.0).bfloat16(), "b": (torch.ones(2), None)},
    ]
    found = [tensors_digest(made, "shape"), tensors_digest(made, "other")]
    found += [tensors_digest(value, "shape") for value in others]
    assert len(set(found)) == 6
    assert tensors_digest({"a": torch.arange(6.0), "b": (torch.ones(2), None)}, "shape") == found[0]


def test_another_network_of_the_same_name_does_not_resume_a_run(tmp_path) -> None:
    first, second = small_model(seed=0), small_model(seed=1)
    sample = [ol.Sample("a", [5, 6], [7, 8, 9])]
    ol.score(first, sample, "forced-ar", out=tmp_path / "run")
    with pytest.raises(RunError, match="digest"):
        ol.score(second, sample, "forced-ar", out=tmp_path / "run")
