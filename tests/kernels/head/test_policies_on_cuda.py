"""Policies that ask for more than statistics decode on a GPU what they decode on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.decode.generate import Generation, GenerationSettings, generate_batch  # noqa: E402
from orderlens.models.loading import load_model  # noqa: E402
from orderlens.rules import parse_policies  # noqa: E402
from orderlens.testing import write_small  # noqa: E402
from orderlens.texts.samples import EncodedSample  # noqa: E402

OTHER = "cuda" if torch.cuda.is_available() else "cpu"
"""Without a GPU the model is loaded a second time: then this only says that runs repeat."""
NAMES = ("klass", "credit", "wino", "hierarchy-remask", "info-gain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("small")
    write_small(place)
    return place


def decoded(folder: Path, device: str, name: str) -> Generation:
    rng = np.random.default_rng(0)
    samples = [EncodedSample(str(i), rng.integers(10, 200, 5 + i), np.zeros(0, np.int64)) for i in range(2)]
    model = load_model(str(folder), device=device, dtype="float32")
    return generate_batch(model, samples, parse_policies(name), GenerationSettings(12, stop_at_eos=False))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens_in_the_same_order(folder: Path, name: str) -> None:
    here, there = (decoded(folder, device, name) for device in ("cpu", OTHER))
    for column in ("position", "token_id", "forward"):
        assert np.array_equal(here.columns[column], there.columns[column]), column
    assert np.allclose(here.columns["logq"], there.columns["logq"], atol=1e-4)
    assert [chain.n_passes for chain in here.chains] == [chain.n_passes for chain in there.chains]
