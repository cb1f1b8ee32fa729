"""When a shape is recorded, replayed and forgotten; the recording itself needs CUDA (test_kernels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.kernels.shapes import PAGE
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.engine import graphs
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.graphs import (
    MAX_GRAPH_TOKENS,
    PLAIN_RUNS,
    GraphedNetwork,
    _Recorded,
    bucket,
    run_plainly,
)
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import Windows, pack


class Replay:
    """Runs the network again on the static input, as a recorded graph would."""

    def __init__(self, again: Callable[[], Any], hidden: Any) -> None:
        self.again, self.hidden, self.count = again, hidden, 0

    def replay(self) -> None:
        self.count += 1
        self.hidden.copy_(self.again())


@pytest.fixture
def graphed(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> GraphedNetwork:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def record(owner: GraphedNetwork, windows: Windows, pool: Any, mode: Any, rows: Any) -> _Recorded:
        def again() -> Any:
            return run_plainly(owner.network, windows, pool, mode, rows)

        hidden = torch.empty_like(again())
        return _Recorded(Replay(again, hidden), windows.packed_NX, rows, hidden)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphedNetwork, "_record", record)
    pool = PagePool(model.config, torch.device("cpu"), torch.float32)
    return GraphedNetwork(model.engine.network, pool)


def windows_of(graphed: GraphedNetwork, count: int, seed: int = 0) -> Any:
    row = graphed.pool.open().row
    tokens = np.random.default_rng(seed).integers(0, 97, (count, 8))
    return pack(np.full(count, row), np.zeros(count, int), np.full(count, 8), tokens)


def test_repeated_shapes_are_recorded_and_replayed_with_new_input(graphed: GraphedNetwork) -> None:
    packed = windows_of(graphed, 5)
    plain = graphed.run(packed, 0, mode="read")
    assert plain is not None
    for _ in range(PLAIN_RUNS - 1):
        graphed.run(packed, 0, mode="read")
    assert not graphed._recorded
    replayed = graphed.run(packed, 0, mode="read")
    assert torch.equal(replayed, plain)
    assert list(graphed._recorded) == [(6, 8, 1, "read", 0)]  # rounded up to the bucket of 6
    other = windows_of(graphed, 6, seed=1)
    expected = graphed.network.hidden(Windows(torch.from_numpy(other), 0), graphed.pool)
    assert torch.allclose(graphed.run(other, 0, mode="read"), expected, atol=1e-5)
    (recorded,) = graphed._recorded.values()
    assert recorded is not None
    assert recorded.graph.count == 2  # type: ignore[attr-defined]


def test_growing_the_pool_forgets_graphs(graphed: GraphedNetwork) -> None:
    packed = windows_of(graphed, 4)
    for _ in range(PLAIN_RUNS + 1):
        before = graphed.run(packed, 0, mode="read")
    first = dict(graphed._recorded)
    slots = [graphed.pool.open() for _ in range(9)]
    graphed.pool.reserve([(slot, 10 * PAGE) for slot in slots])
    assert torch.equal(graphed.run(packed, 0, mode="read"), before)
    assert graphed._recorded.keys() == first.keys()
    assert all(graphed._recorded[key] is not first[key] for key in first)
    graphed.forget()  # what running out of memory asks for
    assert not graphed._recorded
    assert torch.equal(graphed.run(packed, 0, mode="read"), before)


def test_large_forwards_run_plainly_and_unpadded(graphed: GraphedNetwork) -> None:
    assert graphed._max_tokens == MAX_GRAPH_TOKENS
    graphed = GraphedNetwork(graphed.network, graphed.pool, max_tokens=40)
    packed = windows_of(graphed, 9)
    for _ in range(PLAIN_RUNS + 2):
        hidden = graphed.run(packed, 0, mode="read")
    assert hidden is not None
    assert len(hidden) == 72
    assert not graphed._recorded


def test_large_forwards_are_recorded_with_the_rows_that_are_wanted(
    graphed: GraphedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "WHOLE_TOKENS", 48)
    assert not graphed.selects_rows(5, 8)  # padded to 6 windows of 8 tokens
    monkeypatch.setattr(graphs, "WHOLE_TOKENS", 47)
    assert graphed.selects_rows(5, 8)
    packed, wanted = windows_of(graphed, 5), np.array([3, 17, 18, 30])
    whole = graphed.network.hidden(Windows(torch.from_numpy(packed), 0), graphed.pool)
    for turn in range(PLAIN_RUNS + 2):
        flat = wanted + turn % 2
        hidden = graphed.run(packed, 0, "read", flat)
        assert hidden is not None
        assert len(hidden) == 6  # rows come in steps of 48 // 16
        assert torch.allclose(hidden[:4], whole[flat], atol=1e-5)
    assert list(graphed._recorded) == [(6, 8, 1, "read", 6)]


@pytest.mark.parametrize("whole", [8192, 16])
def test_an_engine_reads_the_same_rows_from_either_kind_of_graph(
    model: DecoderModel, graphed: GraphedNetwork, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    engine = ForwardEngine(model.engine.network, model.config)
    expected, packed = [], windows_of(graphed, 4, seed=3)
    state, offset = np.array([0, 1, 1, 3]), np.array([7, 0, 5, 2])
    engine.pool = graphed.pool
    for source in (None, graphed):
        engine._graphs = source
        monkeypatch.setattr(graphs, "WHOLE_TOKENS", whole)
        for _ in range(PLAIN_RUNS + 2):
            ((places, rows),) = engine.rows(packed, state, offset)
            assert places.tolist() == [0, 1, 2, 3]
            expected.append(rows)
    assert graphed._recorded
    assert len({id(rows) for rows in expected}) == len(expected)
    assert all(torch.allclose(rows, expected[0], atol=1e-5) for rows in expected)


def test_buckets_grow_and_hold_what_they_are_for() -> None:
    sizes = [bucket(count) for count in range(1, 600)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert (bucket(257), bucket(510)) == (288, 512)
    assert (bucket(768), bucket(769), bucket(965), bucket(1535)) == (768, 776, 968, 1536)
