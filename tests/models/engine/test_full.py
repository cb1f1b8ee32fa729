"""Sessions of full-attention networks: whole canvases in, the wanted rows out, nothing kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from orderlens.errors import UserInputError
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.full import CanvasSession, NoCache, UncachedNetwork, canvas_engine
from orderlens.models.protocol import HiddenRows, StateBatch


class Sums:
    """Hidden state: (token, position, sum of the canvas)."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        self.calls: list[int] = []

    def canvas(self, tokens_NW: Tensor) -> Tensor:
        self.calls.append(len(tokens_NW))
        token = tokens_NW.float()
        position = torch.arange(tokens_NW.shape[1]).expand_as(token).float()
        return torch.stack([token, position, token.sum(dim=1, keepdim=True).expand_as(token)], dim=2)


def states(tokens_NW: np.ndarray, row_state: list[int], row_offset: list[int], start: int = 0) -> StateBatch:
    count = len(tokens_NW)
    numbers = np.arange(count), np.full(count, start)
    return StateBatch(*numbers, tokens_NW, np.array(row_state, np.int64), np.array(row_offset, np.int64))


def session(network: Sums, *, shifted: bool = False) -> CanvasSession:
    return CanvasSession(canvas_engine(network, 16), torch.zeros(10, 3), (9,), 10, shifted=shifted)


TOKENS = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 9]])


def values(rows: HiddenRows) -> list[list[float]]:
    found: list[list[float]] = rows.hidden_RD.tolist()
    return found


def test_rows_come_in_the_order_asked() -> None:
    network = Sums()
    engine = ForwardEngine(UncachedNetwork(network), NoCache(16), max_tokens=8)
    found = CanvasSession(engine, torch.zeros(10, 3), (9,), 10)
    rows = found.evaluate(states(TOKENS, [2, 0, 1, 0], [3, 1, 0, 2]))
    assert values(rows) == [[9, 3, 9], [2, 1, 10], [5, 0, 26], [3, 2, 10]]
    assert network.calls == [2, 1]  # cut to the token limit
    assert (rows.excluded, rows.valid_vocab) == ((9,), 10)


def test_shifted_rows_come_from_the_position_before() -> None:
    rows = session(Sums(), shifted=True).evaluate(states(TOKENS, [0, 0, 1], [0, 1, 3]))
    assert values(rows) == [[1, 0, 10], [1, 0, 10], [7, 2, 26]]


def test_nothing_is_kept_and_slots_do_not_matter() -> None:
    memory = session(Sums())
    memory.prefill([TOKENS[0]], [0])
    memory.extend(np.array([0]), TOKENS[:1])
    memory.keep(np.array([0, 0]))
    assert values(memory.evaluate(states(TOKENS[:1], [0], [0]))) == [[1, 0, 10]]
    assert values(memory.evaluate(states(TOKENS[:1], [], []))) == []


def test_what_cannot_be_evaluated_is_refused() -> None:
    memory = session(Sums())
    with pytest.raises(ValueError, match="whole canvas"):
        memory.evaluate(states(TOKENS, [0], [0], start=4))
    with pytest.raises(UserInputError, match="17 tokens exceeds the model's 16 positions"):
        memory.evaluate(states(np.zeros((1, 17), np.int64), [0], [0]))
    with pytest.raises(UserInputError, match="token id 10 is outside"):
        memory.evaluate(states(np.full((1, 4), 10), [0], [0]))


def test_the_cache_holds_nothing() -> None:
    engine = canvas_engine(Sums(), 16)
    assert engine.pool.nbytes == 0
    with pytest.raises(NotImplementedError):
        engine.store(np.zeros((1, 7), np.int32))
