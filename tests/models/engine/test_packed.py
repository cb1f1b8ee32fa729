"""Products through packed matrices against torch's own, and when a matrix is packed anew."""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

from orderlens.models.engine import layer_parts  # noqa: E402
from orderlens.models.engine.layer_parts import can_pack, linear, packed_linear, widened  # noqa: E402

WIDTH, OUT = 96, 704


@pytest.fixture
def weight() -> torch.nn.Parameter:
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(OUT, WIDTH), requires_grad=False)


@pytest.mark.parametrize("shape", [(4,), (2, 16), (3, 1, 32), (160,), (161,), (1,)])
def test_the_product_is_torchs(weight: torch.nn.Parameter, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, WIDTH)
    expected = torch.nn.functional.linear(x.double(), weight.double()).float()
    torch.testing.assert_close(packed_linear(x, weight), expected, rtol=1e-5, atol=1e-4)
    by_columns = weight.T.contiguous().T
    torch.testing.assert_close(packed_linear(x, by_columns), expected, rtol=1e-5, atol=1e-4)


def test_a_changed_matrix_is_packed_anew(weight: torch.nn.Parameter) -> None:
    x = torch.randn(8, WIDTH)
    before = packed_linear(x, weight)
    weight.mul_(2)
    torch.testing.assert_close(packed_linear(x, weight), 2 * before)
    weight.data = weight.data / 4
    torch.testing.assert_close(packed_linear(x, weight), before / 2)


def test_the_packed_form_goes_with_its_matrix_and_stays_out_of_copies() -> None:
    layer, x = torch.nn.Linear(WIDTH, OUT, bias=False).requires_grad_(False), torch.randn(8, WIDTH)
    gc.collect()  # frees unused matrices of other tests, which would change the count
    kept = len(layer_parts._copies)
    again = packed_linear(x, layer.weight)
    if not can_pack(x, layer.weight):
        pytest.skip("this build of torch has no oneDNN")
    assert len(layer_parts._copies) == kept + 1
    other = copy.deepcopy(layer)
    torch.testing.assert_close(packed_linear(x, other.weight), again)
    assert len(layer_parts._copies) == kept + 2
    del layer, other
    assert len(layer_parts._copies) == kept


def test_a_short_matrix_is_widened_once_and_again_when_it_changed() -> None:
    weight = torch.randn(OUT, WIDTH).bfloat16()
    wide = widened(weight)
    assert torch.equal(wide, weight.float())
    assert widened(weight) is wide
    weight.mul_(2)
    assert torch.equal(widened(weight), 2 * wide)
    gc.collect()
    kept = len(layer_parts._copies)
    del weight
    assert len(layer_parts._copies) == kept - 1
    with torch.inference_mode():
        uncounted = torch.randn(OUT, WIDTH).half()
        assert widened(uncounted) is not widened(uncounted)
        assert torch.equal(widened(uncounted), uncounted.float())


def test_gradients_and_other_types_go_through_torch(weight: torch.nn.Parameter) -> None:
    x = torch.randn(8, WIDTH, requires_grad=True)
    assert not can_pack(x, weight)
    packed_linear(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(8, -1), rtol=1e-5, atol=1e-4)
    assert not can_pack(torch.randn(8, WIDTH, dtype=torch.float64), weight.double())
    with torch.inference_mode():
        uncounted = weight.clone()
        assert not can_pack(torch.randn(8, WIDTH), uncounted)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fast", [True, False])
def test_sixteen_bits_are_widened_where_the_processor_has_no_such_products(kind, fast, monkeypatch) -> None:
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(*shape).to(kind) for shape in ((8, WIDTH), (OUT, WIDTH), (OUT,)))
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double()).to(kind)
    plain, seen = layer_parts.functional.linear, []
    monkeypatch.setitem(layer_parts._SUPPORT, kind, lambda: fast)
    monkeypatch.setattr(
        layer_parts.functional, "linear", lambda *given: (seen.append(given), plain(*given))[1]
    )
    found = linear(x, weight, bias)
    assert torch.equal(packed_linear(x, weight), linear(x, weight))
    kinds = {part.dtype for given in seen for part in given if part is not None}
    assert kinds == {kind if fast else torch.float32}
    assert found.dtype == kind
    torch.testing.assert_close(found, exact, rtol=2 * torch.finfo(kind).eps, atol=1e-2)
    assert fast or (found != exact).float().mean() < 0.01  # rounded once, from float32
