"""Every kernel against its plain torch counterpart: on a CUDA GPU, elsewhere in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.kernels.gpu import HOPPER, gpu_of, gpu_with
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.float8 import FLOAT8, Float8Stack, Matrix, to_float8
from orderlens.models.decoder.network import ExpertNetwork, experts_supported
from orderlens.models.decoder.torch_ops import TorchOps, choose_experts, loop_over_experts, with_shared
from orderlens.models.decoder.weights import random_weights
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import Windows, pack
from orderlens.models.families.llada2 import MINI
from support import kernel_place

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter warns of −inf − −inf

INTERPRETED, DEVICE, DTYPE = kernel_place()  # kernels are imported by nothing else without a GPU
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (the dev extra has it on Linux)"
)
ROUGH = 1e-5 if INTERPRETED else 2e-2
SMALL = replace(
    MINI,
    vocab_size=64,
    hidden_size=64,
    n_layers=2,
    ffn_width=64,
    expert_width=32,
    n_experts=16,
    n_active=4,
    n_groups=4,
    n_kept_groups=2,
    n_heads=4,
    n_kv_heads=2,
    head_width=32,
    rotary=16,
    max_positions=512,
)


def relative_error(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE, DTYPE)


def test_published_shapes_are_supported() -> None:
    assert experts_supported(MINI)
    assert not experts_supported(replace(MINI, n_experts=24))


@needs_triton
def test_add_norm() -> None:
    from orderlens.kernels.rowwise import add_rms_norm

    plain = TorchOps(SMALL, DEVICE, DTYPE)
    x, delta, weight = randn(5, 96), randn(5, 96, seed=1), randn(96, seed=2)
    total, normed = add_rms_norm(x, delta, weight, 1e-6)
    expected = plain.add_norm(x, delta, weight)
    assert relative_error(total, expected[0]) < ROUGH
    assert relative_error(normed, expected[1]) < ROUGH
    assert relative_error(add_rms_norm(x, None, weight, 1e-6)[1], plain.add_norm(x, None, weight)[1]) < ROUGH


@needs_triton
def test_routing() -> None:
    from orderlens.kernels.experts.route import choose_experts as route

    logits = torch.randn(9, 16, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    bias = torch.randn(16, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 0.2
    ids, weights, _ = route(logits, bias, SMALL)
    expected_ids, expected_weights = with_shared(*choose_experts(logits, bias, SMALL), SMALL)
    assert ids.tolist() == expected_ids.tolist()
    assert torch.allclose(weights, expected_weights, atol=1e-6)


def tilings() -> list[Any]:
    """Full part, rest, gate and up, down: a program per tile; programs that stay; tiles with a rest, of which

    some are full, some hold the rest's places alone and some lie between; tiles of another size than warps
    that specialise know.
    """
    return [
        (16, 0, (16, 32, 4, 3), (32, 16, 4, 3)),
        (16, 0, (16, 32, 4, 3, 1), (32, 16, 4, 3, 2)),
        (16, 0, (16, 32, 4, 3), (32, 16, 4, 3, 1, True)),
        (16, 4, (16, 32, 4, 3), (32, 16, 4, 3)),
        (16, 8, (16, 32, 4, 3, 1), (32, 16, 4, 3, 2)),
        (16, 0, (256, 256, 4, 3), (256, 256, 4, 3)),
        (16, 0, (16, 32, 4, 3, 0, False, False), (32, 16, 4, 3, 0, False, False)),
        (16, 8, (16, 32, 4, 3, 0, False, False), (32, 16, 4, 3, 0, False, False)),
    ]


@needs_triton
@pytest.mark.parametrize(("rows", "rest", "gate_up", "down"), tilings())
def test_experts(rows: int, rest: int, gate_up: Any, down: Any) -> None:
    from orderlens.kernels.experts.experts import ExpertTiling, combine, expert_rows
    from orderlens.kernels.experts.tiling import Tiling, Visits

    if not INTERPRETED:  # what the matrix unit takes
        rows, rest = 64, 4 * rest
    experts = StackedExperts(randn(6, 64, 64, seed=6, scale=0.2), randn(6, 64, 32, seed=7, scale=0.2))
    x, generator = randn(37, 64, seed=8), torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(37)]).to(DEVICE)
    ids[ids == 2] = 5  # an idle expert, and a busy one
    weights = torch.rand(37, 2, generator=generator).to(DEVICE)
    tiling = ExpertTiling(rows, rest, Tiling(*gate_up), Tiling(*down))
    y = expert_rows(x, experts, ids.int(), Visits.of(ids, 6), tiling)
    residual, norm = randn(37, 64, seed=10), randn(64, seed=11)
    total, normed = combine(y, weights, residual, norm, 1e-6)
    expected = residual + loop_over_experts(x, ids, weights, experts)
    assert relative_error(total, expected) < ROUGH
    assert relative_error(normed, TorchOps(SMALL, DEVICE, DTYPE).add_norm(expected, None, norm)[1]) < ROUGH


@needs_triton
@pytest.mark.parametrize("n_scales", [1, 2])
@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("few", [0, 16])
def test_experts_in_float8(n_scales: int, tiled: bool, few: int) -> None:
    from orderlens.kernels.experts.experts import ExpertTiling, expert_rows
    from orderlens.kernels.experts.tiling import Tiling, Visits

    experts = scaled_experts(n_scales)
    x, generator = randn(37, 128, seed=8), torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(37)]).to(DEVICE)
    ids[ids == 2] = 5  # an idle expert
    ids[:24] = torch.tensor([3, 0], device=DEVICE)  # two with more than a tile of 16
    launch = Tiling(64, 32, 4, 3, tiled=tiled and gpu_of(DEVICE).descriptors)
    tiling = ExpertTiling(32 if few else 16, 0, launch, launch, few)
    y = expert_rows(x, experts, ids.int(), Visits.of(ids, 6), tiling)
    every = torch.ones(len(x), 1, device=DEVICE)
    expected = torch.stack([loop_over_experts(x, ids[:, k : k + 1], every, experts) for k in range(2)], dim=1)
    assert relative_error(y.view(len(x), 2, -1), expected) < ROUGH


def scaled_experts(n_scales: int) -> StackedExperts:
    """Return experts in float8, with one scale per row or with groups of columns that differ."""
    stack = Float8Stack(6, 64, 128, DEVICE, None if n_scales == 1 else (32, 64))
    for expert in range(6):
        shapes = ((64, 128), (64, 128), (128, 64))
        plain = [randn(*shape, seed=3 * expert + part, scale=0.1) for part, shape in enumerate(shapes)]
        stack.fill(expert, *(grouped(matrix, n_scales) for matrix in plain))
    return stack.experts


def grouped(weight: Any, n_scales: int) -> Matrix:
    whole = to_float8(weight)
    if n_scales == 1:
        return whole
    assert whole.scale_OS is not None
    groups = weight.shape[1] // 64
    return Matrix(whole.values_OC, whole.scale_OS * torch.tensor([1.0, 0.25][:groups], device=DEVICE))


@needs_triton
def test_every_float8_number_is_widened_exactly() -> None:
    from orderlens.kernels.experts.experts import ExpertTiling, expert_rows
    from orderlens.kernels.experts.tiling import Tiling, Visits

    every = torch.arange(256, dtype=torch.uint8)
    every[[127, 255]] = 0  # not numbers
    numbers = every.view(FLOAT8).to(DEVICE)
    ones, x = torch.ones(128, 1, device=DEVICE), 2 * torch.eye(128, device=DEVICE, dtype=DTYPE)
    one = Matrix(torch.eye(128, device=DEVICE).to(FLOAT8), ones)
    for half in numbers.chunk(2):
        part = half.expand(128, 128).clone()
        stack = Float8Stack(1, 128, 128, DEVICE, None)
        stack.fill(0, one, one, Matrix(part, ones))  # row i of x reads column i of the down weights
        ids = torch.zeros(128, 1, dtype=torch.int64, device=DEVICE)
        launch = Tiling(64, 128, 4, 3, tiled=gpu_of(DEVICE).descriptors)
        y = expert_rows(x, stack.experts, ids.int(), Visits.of(ids, 1), ExpertTiling(16, 0, launch, launch))
        inner = (2 * torch.sigmoid(torch.tensor(2.0)) * 2).to(DTYPE).to(DEVICE)
        expected = (part[0].float() * inner.float()).to(DTYPE)
        assert torch.equal(y, expected[:, None].expand(-1, 128))


@needs_triton
def test_tilings_of_float8_need_neither_rest_nor_specialised_warps() -> None:
    from orderlens.kernels.experts.experts import FLOAT8_TILINGS, choose_tiling

    rows = [choose_tiling(tokens * 9, 257, float8=True).rows for tokens in (32, 128, 1024, 4096)]
    assert rows == [16, 32, 64, 128]
    for _, tiling in FLOAT8_TILINGS:
        assert tiling.rest == 0
        assert not tiling.down.specialised
        assert tiling.fitting(HOPPER, weight_bytes=1) == tiling
        assert tiling.fitting(gpu_with((8, 9), 128), weight_bytes=1).gate_up.stages >= 2


@needs_triton
def test_tilings_go_from_few_tokens_to_many() -> None:
    from orderlens.kernels.experts.experts import TILINGS, choose_tiling

    limits = [limit for limit, _ in TILINGS]
    assert limits == sorted(limits)
    assert limits[-1] == float("inf")
    sizes = [choose_tiling(tokens * 9, 257).rows for tokens in (32, 512, 1024, 4096, 16384)]
    assert sizes == sorted(sizes)
    for _, tiling in TILINGS:
        assert not tiling.down.specialised or (tiling.rows, tiling.rest) == (128, 0)
        assert tiling.fitting(HOPPER) == tiling
        elsewhere = tiling.fitting(gpu_with((10, 0), 148))
        assert not elsewhere.down.specialised
        assert replace(elsewhere, down=replace(elsewhere.down, specialised=tiling.down.specialised)) == tiling


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper"
)
def test_down_by_specialised_warps_is_bit_for_bit_the_same() -> None:
    from orderlens.kernels.experts.down import down
    from orderlens.kernels.experts.experts import TILINGS
    from orderlens.kernels.experts.tiling import Visits, plan_visits

    experts = StackedExperts(randn(6, 256, 512), randn(6, 512, 128, seed=7, scale=0.2))
    ids = torch.randint(5, (700, 1), generator=torch.Generator().manual_seed(1)).int().to(DEVICE)
    plan = plan_visits(ids, Visits.of(ids, 6), 6, 128)
    inner, tiling = randn(700, 128, seed=8), TILINGS[-1][1].down
    found = down(inner, experts, plan, tiling)
    assert torch.equal(found, down(inner, experts, plan, replace(tiling, specialised=False)))


@needs_triton
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (12, 0)])
def test_tilings_fit_every_gpu(capability: tuple[int, int]) -> None:
    from orderlens.kernels.experts.experts import TILINGS

    gpu = gpu_with(capability, 100)
    for tiling in (tiling.fitting(gpu) for _, tiling in TILINGS):
        assert tiling.rest == 0
        for product, weights in ((tiling.gate_up, 2), (tiling.down, 1)):
            assert product.tiled == gpu.descriptors
            assert product.stages >= 2  # otherwise nothing is loaded in advance
            step = 2 * product.block_k * (weights * product.block_n + tiling.rows)
            assert product.stages * step < gpu.shared_bytes


@needs_triton
@pytest.mark.parametrize("store", [False, True])
def test_heads_of_several_tokens_at_once(monkeypatch: pytest.MonkeyPatch, store: bool) -> None:
    """A program may take one token or eight; 3 windows of 9 tokens leave the last program half empty."""
    from orderlens.kernels import rowwise
    from orderlens.models.decoder.torch_ops import rotary_tables_of

    weights = random_weights(SMALL, DEVICE, DTYPE, seed=1, std=0.15)
    tables = rotary_tables_of(SMALL, DEVICE, DTYPE)
    fused = randn(27, SMALL.qkv_width, seed=3)
    found = []
    for few in (128, 0):
        monkeypatch.setattr(rowwise, "FEW_TOKENS", few)
        pool = PagePool(SMALL, DEVICE, DTYPE)
        slots = [pool.open() for _ in range(3)]
        pool.reserve([(slot, 45) for slot in slots])
        pool.flush()
        rows = np.array([slot.row for slot in slots])
        packed = pack(rows, np.array([0, 27, 33]), np.array([9, 9, 4]), np.zeros((3, 9), np.int64))
        windows = Windows(torch.from_numpy(packed).to(DEVICE), 33)
        args = (fused, weights.layers[1], tables, windows, pool, 1, SMALL, store)
        found.append([rowwise.prepare_heads(*args), pool.keys[1], pool.values[1]])
    for one, several in zip(*found, strict=True):
        assert torch.equal(one, several)
    assert bool(found[0][1].any()) == store


@needs_triton
@pytest.mark.slow
def test_a_whole_forward_with_prefix_padding_and_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences of different grids are cached together, then continued; with one and with four splits."""
    from orderlens.models.decoder.triton_ops import TritonOps

    shape = replace(SMALL, n_experts=8, n_active=2, n_groups=2, n_kept_groups=1, n_heads=2, n_kv_heads=1)
    weights = random_weights(shape, DEVICE, DTYPE, seed=1, std=0.15)
    found = {}
    for ops in (TorchOps(shape, DEVICE, DTYPE), TritonOps(shape, DEVICE, DTYPE)):
        network = ExpertNetwork(weights, shape, ops)
        pool = PagePool(shape, DEVICE, DTYPE)
        slots = [pool.open(), pool.open()]
        pool.reserve([(slots[0], 48), (slots[1], 21)])
        pool.flush()
        tokens = np.random.default_rng(0).integers(0, 64, (5, 16))
        rows = np.array([slots[0].row] * 3 + [slots[1].row] * 2)
        store = pack(rows, np.array([0, 16, 32, 0, 5]), np.array([16, 16, 16, 5, 16]), tokens)
        network.store(Windows(torch.from_numpy(store).to(DEVICE), 32), pool)
        packed = pack(rows[[0, 3]], np.array([48, 21]), np.array([16, 16]), tokens[:2])
        windows = Windows(torch.from_numpy(packed).to(DEVICE), 48)
        found[type(ops).__name__] = network.hidden(windows, pool)
        found[type(ops).__name__ + " keys"] = pool.keys[1][slots[0].pages + slots[1].pages]
        picked = torch.tensor([0, 5, 31], device=DEVICE)
        some = network.hidden_rows(windows, pool, picked, False)
        assert relative_error(some, found[type(ops).__name__][picked]) < ROUGH
        if isinstance(ops, TritonOps):
            monkeypatch.setattr(ops, "splits", lambda *_: 4)
            found["four splits"] = network.hidden(windows, pool)
    loose = 1e-4 if INTERPRETED else 0.1
    errors = [relative_error(*rows) for rows in zip(found["TritonOps"], found["TorchOps"], strict=True)]
    assert np.median(errors) < loose  # in bfloat16 a token close to a boundary may choose another expert
    assert relative_error(found["TritonOps keys"], found["TorchOps keys"]) < loose
    assert relative_error(found["four splits"], found["TritonOps"]) < loose


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_replayed_graph_gives_the_same_bits() -> None:
    from orderlens.models.engine.engine import ForwardEngine

    engine = ForwardEngine(
        ExpertNetwork(random_weights(SMALL, "cuda", torch.bfloat16, seed=1, std=0.15), SMALL), SMALL
    )
    slot = engine.pool.open()
    tokens = np.random.default_rng(0).integers(0, 64, (3, 16))
    packed = pack(np.full(3, slot.row), np.zeros(3, int), np.full(3, 16), tokens)
    outputs = [next(engine.hidden(packed))[1].clone() for _ in range(5)]
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
    changed = pack(np.full(3, slot.row), np.zeros(3, int), np.full(3, 16), tokens[::-1])
    assert torch.equal(next(engine.hidden(changed))[1].flip(0), outputs[0])
