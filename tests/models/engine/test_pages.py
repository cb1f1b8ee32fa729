from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.errors import DeviceMemoryError, UserInputError
from orderlens.kernels.shapes import PAGE
from orderlens.models.engine.pages import EMPTY_PAGE, PagePool
from orderlens.models.families.llada2 import MINI

SMALL = replace(MINI, n_layers=2, n_kv_heads=1, head_width=4, max_positions=320)


def make_pool(n_pages: int = 4, n_rows: int = 2) -> PagePool:
    return PagePool(SMALL, torch.device("cpu"), torch.float32, n_pages, n_rows)


def test_pages_come_and_go() -> None:
    pool = make_pool(8)
    slot = pool.open()
    pool.reserve([(slot, 70)])
    assert len(slot.pages) == 3
    assert EMPTY_PAGE not in slot.pages
    assert pool.n_free == 4
    pool.flush()
    assert pool.table_RX[slot.row, :3].tolist() == slot.pages
    pool.close([slot])
    assert pool.n_free == 7


def test_growing_keeps_what_is_stored() -> None:
    pool = make_pool(3)
    slot = pool.open()
    pool.reserve([(slot, 2 * PAGE)])
    pool.keys[1][slot.pages[1]] = 7.0
    version = pool.version
    other = pool.open()
    pool.reserve([(other, 5 * PAGE)])
    assert pool.version > version
    assert not set(other.pages) & set(slot.pages)
    assert (pool.keys[1][slot.pages[1]] == 7.0).all()
    assert pool.n_pages >= 8
    assert len(pool.keys[0]) == len(pool.values[1]) == pool.n_pages


def test_rows_grow_too() -> None:
    pool = make_pool(16, 1)
    slots = [pool.open() for _ in range(5)]
    assert len({slot.row for slot in slots}) == 5
    pool.reserve([(slot, PAGE) for slot in slots])
    pool.flush()
    assert [pool.table_RX[slot.row, 0].item() for slot in slots] == [slot.pages[0] for slot in slots]


def test_a_fork_shares_full_pages_and_copies_a_partial_one_before_writing() -> None:
    pool = make_pool(16)
    first = pool.open()
    pool.reserve([(first, PAGE + 5)])
    first.length = PAGE + 5
    pool.keys[0][first.pages[1]] = 3.0
    second = pool.fork(first)
    assert second.pages == first.pages
    pool.reserve([(second, PAGE + 10)])
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] != first.pages[1]
    assert (pool.keys[0][second.pages[1]] == 3.0).all()
    pool.reserve([(first, PAGE + 10)])  # the only owner now writes in place
    assert first.pages[1] != second.pages[1]
    free = pool.n_free
    pool.close([second])
    assert pool.n_free == free + 1
    pool.close([first])
    assert pool.n_free == 15


def test_too_long_a_sequence_is_refused() -> None:
    pool = make_pool()
    with pytest.raises(UserInputError, match="321 tokens exceeds the model's 320 positions"):
        pool.reserve([(pool.open(), 321)])


def test_out_of_memory_leaves_the_pool_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(4)
    slot = pool.open()
    pool.reserve([(slot, 2 * PAGE)])
    original = torch.zeros
    allowed = 5

    def limited(shape: Any, **options: Any) -> Any:
        if shape[0] > allowed:
            raise torch.OutOfMemoryError
        return original(shape, **options)

    monkeypatch.setattr(torch, "zeros", limited)
    other = pool.open()
    with pytest.raises(DeviceMemoryError, match="smaller batch"):
        pool.reserve([(other, 5 * PAGE)])
    assert other.pages == []
    assert pool.n_pages == 4
    pool.reserve([(other, 2 * PAGE)])  # doubling fails, the bare need fits
    assert len(other.pages) == 2
    assert pool.n_pages == 5


def test_layers_that_grew_before_memory_ended_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded graph holds addresses: it must not outlive a growth that failed half-way."""
    pool = make_pool(4)
    before, version = pool.keys[0], pool.version
    original, calls = torch.zeros, []

    def once(shape: Any, **options: Any) -> Any:
        calls.append(shape)
        if len(calls) in (2, 3):  # the second layer, at both sizes that are tried
            raise torch.OutOfMemoryError
        return original(shape, **options)

    monkeypatch.setattr(torch, "zeros", once)
    with pytest.raises(DeviceMemoryError):
        pool.reserve([(pool.open(), 5 * PAGE)])
    assert pool.keys[0] is not before
    assert pool.version > version


def test_trimming_gives_back_what_nobody_uses() -> None:
    pool = make_pool(4)
    first, slot = pool.nbytes, pool.open()
    pool.reserve([(slot, 8 * PAGE)])
    grown, version = pool.nbytes, pool.version
    pool.trim()
    assert (pool.nbytes, pool.version) == (grown, version)  # in use
    pool.close([slot])
    pool.trim()
    assert pool.nbytes == first < grown
    assert pool.version > version
    again = pool.open()
    pool.reserve([(again, 8 * PAGE)])
    assert len(set(again.pages)) == 8
    assert EMPTY_PAGE not in again.pages


@given(actions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 3)), max_size=30))
@settings(max_examples=40, deadline=None)
def test_no_page_is_lost_or_used_twice(actions: list[tuple[int, int, int]]) -> None:
    pool = make_pool(4)
    slots: list[Any] = []
    for kind, which, blocks in actions:
        if kind == 0 or not slots:
            slots.append(pool.open())
        elif kind == 1:
            slot = slots[which % len(slots)]
            length = min(SMALL.max_positions, slot.length + blocks * 20)
            pool.reserve([(slot, length)])
            slot.length = length
        elif kind == 2:
            slots.append(pool.fork(slots[which % len(slots)]))
        else:
            pool.close([slots.pop(which % len(slots))])
    pool.flush()
    users: dict[int, int] = {}
    for slot in slots:
        assert len(slot.pages) == -(-slot.length // PAGE)
        assert pool.table_RX[slot.row, : len(slot.pages)].tolist() == slot.pages
        assert (pool.table_RX[slot.row, len(slot.pages) :] == EMPTY_PAGE).all(), "nothing of an earlier user"
        for page in slot.pages:
            users[page] = users.get(page, 0) + 1
    assert EMPTY_PAGE not in users
    assert pool.n_free + len(users) + 1 == pool.n_pages
    assert len({slot.row for slot in slots}) == len(slots)
    pool.close(slots)
    assert pool.n_free == pool.n_pages - 1
