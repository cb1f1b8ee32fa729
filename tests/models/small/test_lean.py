"""The lean forwards against the network's own modules, over every way in which windows share prefixes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orderlens.models.characters import CharacterTokenizer  # noqa: E402
from orderlens.models.protocol import StateBatch  # noqa: E402
from orderlens.models.small import session as sessions  # noqa: E402
from orderlens.models.small.config import TransformerConfig  # noqa: E402
from orderlens.models.small.lean import LeanPasses, Workspace  # noqa: E402
from orderlens.models.small.model import TransformerModel  # noqa: E402
from orderlens.models.small.network import Transformer  # noqa: E402
from orderlens.models.small.passes import ModulePasses  # noqa: E402
from orderlens.models.small.runs import Run, find_runs, in_batches  # noqa: E402
from orderlens.models.small.windows import CachedWindows, WantedRows  # noqa: E402

SHAPES = {
    "tiny-like": TransformerConfig(40, 3, 32, 4, 48, 8, 256),
    "smol-like": TransformerConfig(40, 2, 48, 6, 40, 8, 256, n_kv_heads=2, qk_norm=False, norm_eps=1e-5),
    "full": TransformerConfig(40, 2, 32, 4, 48, 8, 256, attention="full"),
}
SLOTS_AND_STARTS = {
    "one prefix": ([2] * 5, [16] * 5),
    "chains side by side": ([0, 1, 2, 3], [24] * 4),
    "equal sharing": ([1, 1, 2, 2, 3, 3], [16] * 6),
    "ragged": ([3, 0, 0, 2, 0, 3], [8, 16, 0, 16, 16, 24]),
    "no prefix": ([0, 3, 1], [0] * 3),
}


def build(config: TransformerConfig) -> TransformerModel:
    torch.manual_seed(3)
    network = Transformer(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return TransformerModel(network, CharacterTokenizer(), name="random", digest="random")


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest) -> TransformerModel:
    return build(SHAPES[request.param])


def windows_of(model: TransformerModel, which: str) -> CachedWindows:
    rng = np.random.default_rng(1)
    session = model.open_session()
    session.prefill([rng.integers(2, 40, 24) for _ in range(4)], [0] * 4)
    slots, starts = (np.array(values) for values in SLOTS_AND_STARTS[which])
    if model.attention == "full":
        starts = np.zeros_like(starts)
    order = next(in_batches(slots, starts, 99))
    tokens = rng.integers(0, 40, (len(slots), 8))
    return CachedWindows(session._cache, slots[order], starts[order], tokens)


@pytest.mark.parametrize("which", SLOTS_AND_STARTS)
def test_rows_and_keys_are_those_of_the_modules(model: TransformerModel, which: str) -> None:
    windows = windows_of(model, which)
    lean, modules = LeanPasses(model.network), ModulePasses(model.network)
    n = len(windows.slots_N)
    all_rows = WantedRows(np.repeat(np.arange(n), 8), np.tile(np.arange(8), n))
    some = np.flatnonzero(np.random.default_rng(2).random(8 * n) < 0.4)
    uneven = WantedRows(all_rows.window_R[some], all_rows.offset_R[some])
    with torch.inference_mode():
        for wanted in (all_rows, uneven, WantedRows(np.array([n - 1]), np.array([5]))):
            torch.testing.assert_close(
                lean.rows(windows, wanted), modules.rows(windows, wanted), rtol=0, atol=2e-5
            )
        for ours, theirs in zip(lean.keys(windows), modules.keys(windows), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_rows_of_one_call_survive_the_next(model: TransformerModel) -> None:
    windows, lean = windows_of(model, "one prefix"), LeanPasses(model.network)
    wanted = WantedRows(np.arange(5), np.zeros(5, np.int64))
    with torch.inference_mode():
        first = lean.rows(windows, wanted)
        before = first.clone()
        lean.rows(windows_of(model, "ragged"), wanted)
    assert torch.equal(first, before)


def test_a_batch_is_cut_evenly_and_found_again(
    model: TransformerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sessions.STATES_AT_ONCE, "cpu", 1)  # four windows of 8 per forward
    session = model.open_session()
    session.prefill([np.arange(2, 26), np.arange(4, 28)], [0, 0])
    blocked = model.attention == "block-causal"
    slots = np.array([1, 0, 1, 0, 0, 1, 1])
    starts = np.array([8, 24, 0, 8, 16, 24, 16]) if blocked else np.zeros(7, np.int64)
    tokens = np.random.default_rng(5).integers(0, 40, (7, 8))
    row_state, row_offset = np.array([6, 0, 6, 3, 2, 1]), np.array([1, 7, 0, 3, 2, 2])
    rows = session.evaluate(StateBatch(slots, starts, tokens, row_state, row_offset))
    prefixes = [np.arange(2, 26), np.arange(4, 28)]
    for row, (state, offset) in enumerate(zip(row_state, row_offset, strict=True)):
        start = starts[state]
        sequence = np.concatenate([prefixes[slots[state]][:start], tokens[state]])
        logits = rows.hidden_RD[row] @ rows.unembed_VD.T
        logits[model.mask_id] = -torch.inf
        expected = model.log_probs(sequence)[start + offset]
        np.testing.assert_allclose(torch.log_softmax(logits, 0).numpy(), expected, atol=2e-4)


def test_which_passes_a_session_takes() -> None:
    model = build(SHAPES["tiny-like"])
    assert isinstance(model.open_session()._passes, LeanPasses)
    assert isinstance(model.with_dtype("bfloat16").open_session()._passes, ModulePasses)


@pytest.mark.parametrize(
    ("slots", "starts", "runs"),
    [
        ([4, 4, 4], [8, 8, 8], [Run(0, 1, 3, 8, 4)]),
        ([0, 1, 2], [8, 8, 8], [Run(0, 3, 1, 8, 0)]),
        ([0, 0, 1, 1, 3, 3], [8] * 6, [Run(0, 2, 2, 8, 0), Run(4, 1, 2, 8, 3)]),
        ([0, 1, 1], [8] * 3, [Run(0, 1, 1, 8, 0), Run(1, 1, 2, 8, 1)]),
        ([5, 2, 7], [0, 0, 0], [Run(0, 1, 3, 0, 0)]),
        ([0, 0, 1], [0, 8, 16], [Run(0, 1, 1, 0, 0), Run(1, 1, 1, 8, 0), Run(2, 1, 1, 16, 1)]),
    ],
)
def test_runs(slots: list[int], starts: list[int], runs: list[Run]) -> None:
    assert find_runs(np.array(slots), np.array(starts)) == runs


def test_batches_hold_every_window_once_and_keep_prefixes_together() -> None:
    slots, starts = np.array([1, 0, 1, 0, 1]), np.array([8, 8, 8, 16, 16])
    batches = list(in_batches(slots, starts, 2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert np.concatenate(batches).tolist() == [1, 0, 2, 3, 4]
    assert list(in_batches(np.zeros(0, np.int64), np.zeros(0, np.int64), 4)) == []


def test_workspace_gives_one_buffer_per_name() -> None:
    space = Workspace()
    large, small = space.take("a", 4, 3), space.take("a", 2, 3)
    assert small.shape == (2, 3)
    assert large.data_ptr() == small.data_ptr()
    assert space.take("b", 1).data_ptr() != small.data_ptr()
