"""When a shape is recorded, replayed and forgotten; the recording itself needs CUDA (test_kernels)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from orderlens.models.llada2.model import LLaDA2Model
from orderlens.models.torch.graphs import MAX_GRAPH_TOKENS, PLAIN_RUNS, GraphedNetwork, _Recorded
from orderlens.models.torch.pages import PAGE, PagePool
from orderlens.models.torch.window import Windows, pack


class Replay:
    """Runs the network again on the static input, as a recorded graph would."""

    def __init__(self, owner: GraphedNetwork, windows: Windows, hidden: Any) -> None:
        self.owner, self.windows, self.hidden, self.count = owner, windows, hidden, 0

    def replay(self) -> None:
        self.count += 1
        self.hidden.copy_(self.owner.network.hidden(self.windows, self.owner.pool))


@pytest.fixture
def graphed(model: LLaDA2Model, monkeypatch: pytest.MonkeyPatch) -> GraphedNetwork:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def record(owner: GraphedNetwork, windows: Windows, mode: str) -> _Recorded:
        static = Windows(windows.packed_NX.clone(), windows.longest_start)
        hidden = torch.empty_like(owner.network.hidden(static, owner.pool))
        return _Recorded(Replay(owner, static, hidden), static.packed_NX, hidden)  # type: ignore[arg-type]

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
    assert list(graphed._recorded) == [(6, 8, 1, "read")]  # rounded up to the bucket of 6
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
