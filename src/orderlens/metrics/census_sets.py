"""All subsets of a span by size, the dynamic programme over them, and sums along the paths between them.

A set is an integer whose bit i says that offset i is revealed. Costs are flat: that of revealing i right
after R is at R × B + i. Does not depend on models, files or tables.

Shape letters: B positions of the span, S sets of one size, K members of a set, P paths, X queried values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from orderlens.metrics.segments import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class SetsOfSize:
    """The sets of one size: members, the sets without one member, and those edges in a flat table."""

    set_S: IntArray
    member_SK: IntArray
    before_SK: IntArray
    edge_SK: IntArray


@cache
def sets_by_size(size: int) -> tuple[SetsOfSize, ...]:
    """Return the sets of 1 to ``size`` members."""
    sets = np.arange(1, 2**size)
    n_members = count_bits(sets)
    layers = []
    for count in range(1, size + 1):
        chosen = sets[n_members == count]
        member_SK = np.nonzero((chosen[:, None] >> np.arange(size)) & 1)[1].reshape(len(chosen), count)
        before_SK = chosen[:, None] ^ (1 << member_SK)
        layers.append(SetsOfSize(chosen, member_SK, before_SK, before_SK * size + member_SK))
    return tuple(layers)


def values_by_set(
    cost: FloatArray, layers: Sequence[SetsOfSize], reduce: Callable[[FloatArray], Any]
) -> FloatArray:
    """Return the value of every set [2^B]: ``reduce`` [S, K] of the value without a member + its cost."""
    value = np.zeros(2 ** len(layers))
    for layer in layers:
        value[layer.set_S] = reduce(value[layer.before_SK] + cost[layer.edge_SK])
    return value


def cheapest_order(cost: FloatArray, layers: Sequence[SetsOfSize]) -> list[int]:
    """Return the order of all offsets with the least sum of ``cost``."""
    value, size = values_by_set(cost, layers, lambda sum_SK: sum_SK.min(axis=1)), len(layers)
    order, current = list[int](), 2**size - 1
    while current:
        members = [i for i in range(size) if current >> i & 1]
        before = [current ^ (1 << i) for i in members]
        sums = [value[b] + cost[b * size + i] for b, i in zip(before, members, strict=True)]
        last = int(np.argmin(sums))
        order.append(members[last])
        current = before[last]
    return order[::-1]


def log_mean_exp(sum_SK: FloatArray) -> FloatArray:
    """Return the log of the mean of exp over the last member [S]."""
    top_S1 = sum_SK.max(axis=1, keepdims=True)
    found_S: FloatArray = top_S1[:, 0] + np.log(np.exp(sum_SK - top_S1).mean(axis=1))
    return found_S


def count_bits(sets: IntArray) -> IntArray:
    """Return the number of members of each set."""
    count = np.zeros(len(sets), np.int64)
    for bit in range(int(sets.max(initial=0)).bit_length()):
        count += (sets >> bit) & 1
    return count


def path_sums(
    flat: FloatArray, layers: Sequence[SetsOfSize], n_steps: int, *, from_end: bool = False
) -> FloatArray:
    """Return the sums [S, P] of all paths of ``n_steps`` reveals from the empty set, or up to the full one.

    With ``from_end``, S are the sets of positions that are still masked, instead of those revealed.
    """
    size, full = len(layers), 2 ** len(layers) - 1
    sums, place = np.zeros((1, 1)), np.zeros(full + 1, np.int64)
    for layer in layers[:n_steps]:
        edge_SK = layer.edge_SK
        if from_end:
            edge_SK = (full ^ layer.set_S[:, None]) * size + layer.member_SK
        joined = sums[place[layer.before_SK]] + flat[edge_SK][..., None]
        sums = joined.reshape(len(layer.set_S), -1)
        place[layer.set_S] = np.arange(len(layer.set_S))
    return sums


def count_below(flat: FloatArray, layers: Sequence[SetsOfSize], values_X: FloatArray) -> FloatArray:
    """Count the orders below each value [X]: every set of half the span joins its halves from both sides."""
    size, half = len(layers), len(layers) // 2
    first_SP = np.sort(path_sums(flat, layers, half), axis=1)[:, ::-1]
    rest_SP = np.sort(path_sums(flat, layers, size - half, from_end=True), axis=1)
    middle = layers[half - 1].set_S if half else np.zeros(1, np.int64)
    place = np.searchsorted(layers[size - half - 1].set_S, (2**size - 1) ^ middle)
    count_X = np.zeros(len(values_X))
    for row, at in enumerate(place):
        left = values_X[:, None] - first_SP[row]
        count_X += np.searchsorted(rest_SP[at], left.ravel()).reshape(left.shape).sum(axis=1)
    return count_X


def drawn_sums(flat: FloatArray, size: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Return the sums of ``count`` orders drawn at random, each order equally likely."""
    order_PB = rng.permuted(np.tile(np.arange(size), (count, 1)), axis=1)
    bit_PB = 1 << order_PB
    sums: FloatArray = flat[(np.cumsum(bit_PB, axis=1) - bit_PB) * size + order_PB].sum(axis=1)
    return sums
