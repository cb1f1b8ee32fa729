"""int8 storage: exact where it can be, and a small, measured error elsewhere."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from orderlens.errors import ModelLoadError  # noqa: E402
from orderlens.models.small.folder import dequantise, load_weights, quantise, save_weights  # noqa: E402


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e3))
def test_error_is_at_most_half_a_level_per_row(seed: int, scale: float) -> None:
    weight = torch.randn(5, 17, generator=torch.Generator().manual_seed(seed)) * scale
    values, scales = quantise(weight)
    error = (dequantise(values, scales) - weight).abs().amax(1)
    assert values.dtype == torch.int8
    assert torch.all(error <= scales * 0.5001)


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(dequantise(*quantise(torch.zeros(2, 3))), torch.zeros(2, 3))


def test_saved_weights_come_back_in_float32(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {
        "a.weight": torch.randn(6, 8, generator=generator),
        "norm.weight": torch.randn(8, generator=generator),
    }
    save_weights(tmp_path / "q", state)
    save_weights(tmp_path / "f", state, int8=False)
    small, exact = load_weights(tmp_path / "q"), load_weights(tmp_path / "f")
    assert all(torch.equal(exact[name], tensor) for name, tensor in state.items())
    assert torch.equal(small["norm.weight"], state["norm.weight"])
    assert torch.equal(small["a.weight"], dequantise(*quantise(state["a.weight"])))
    assert (small["a.weight"] - state["a.weight"]).norm() / state["a.weight"].norm() < 0.01


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no model\.safetensors"):
        load_weights(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"\x00" * 20)
    with pytest.raises(ModelLoadError, match="not a safetensors file"):
        load_weights(tmp_path / "bad")
