"""Speculation changes when a number is computed, never its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from orderlens.common.rng import keyed_generator
from orderlens.decode import rounds, speculate_torch
from orderlens.decode.generate import Generation, GenerationSettings, generate_batch
from orderlens.decode.speculate import ALLOWED_MISSES, IDLE_SECONDS, TRIAL_PASSES, SpeculationGate, Speculator
from orderlens.models.engine import graphs
from orderlens.models.engine.graphs import GraphedNetwork, _Recorded, run_plainly
from orderlens.models.engine.model import NetworkModel
from orderlens.models.families.llada2 import load_llada2
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.rules.orders import ConfidenceOrder, Reading, StepView
from orderlens.rules.stats import PositionStats
from orderlens.texts.samples import EncodedSample
from support import write_dense, write_llada2

EVEN, UNEVEN, NEW = (6, 6, 12), (2, 6, 10), 12
"""Prompt lengths and new tokens; blocks have 6 positions."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NetworkModel:
    """A block-causal network of one layer, in which every tenth token ends a text."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_dense(folder, family="sdar", num_hidden_layers=1)
    found = load_model(str(folder), device="cpu", dtype="float32").with_block_size(6)
    assert isinstance(found, NetworkModel)
    found.eos_ids = frozenset(range(10))
    return found


@pytest.fixture
def speculators(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Speculator]]:
    """Collect the speculators of all batches, which always speculate."""
    found: list[Speculator] = []
    monkeypatch.setattr(SpeculationGate, "started", lambda *_: True)

    class Counted(Speculator):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(rounds, "Speculator", Counted)
    return found  # type: ignore[return-value]


def decode(
    model: Any, policies: Any, temperature: float, lengths: Any, speculate: bool, **more: Any
) -> Generation:
    prompts = [keyed_generator(0, "prompt", i).integers(10, 90, length) for i, length in enumerate(lengths)]
    samples = [EncodedSample(str(i), prompt) for i, prompt in enumerate(prompts)]
    settings = GenerationSettings(NEW, temperature, **more)
    before, model.engine.can_speculate = model.engine.can_speculate, speculate
    try:
        return generate_batch(model, samples, policies, settings)
    finally:
        model.engine.can_speculate = before


def assert_same(found: Generation, expected: Generation) -> None:
    assert found.columns.keys() == expected.columns.keys()
    for name, values in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], values, err_msg=name)
    assert [c.finish_reason for c in found.chains] == [c.finish_reason for c in expected.chains]


def totals(speculators: list[Speculator]) -> tuple[int, int]:
    return sum(g.hits for g in speculators), sum(g.misses for g in speculators)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "orders",
    ["forced-ar", "max-prob", "entropy", "max-prob:select=argmax,random:3,top-margin,entropy,max-prob"],
)
def test_traces_are_those_without_speculation(
    model: NetworkModel, speculators: list[Speculator], orders: str, temperature: float
) -> None:
    for lengths in (EVEN, UNEVEN):
        expected = decode(model, parse_policies(orders), temperature, lengths, False)
        assert totals(speculators) == (0, 0)
        assert_same(decode(model, parse_policies(orders), temperature, lengths, True), expected)
        hits, misses = totals(speculators)
        assert hits > 0
        assert misses == 0
        speculators.clear()


def test_all_passes_but_the_first_of_a_block_are_speculative(
    model: NetworkModel, speculators: list[Speculator]
) -> None:
    one = decode(model, parse_policies("max-prob"), 0.0, EVEN, True, stop_at_eos=False)
    assert set(one.columns["forward"].tolist()) == set(range(NEW))
    assert totals(speculators) == (NEW - 2, 0)


def test_texts_end_at_eos_in_some_cases(model: NetworkModel) -> None:
    """A precondition of the comparisons above."""
    found = decode(model, parse_policies("max-prob,random:3"), 1.0, UNEVEN, True)
    assert {chain.finish_reason for chain in found.chains} == {"eos", "length"}


@pytest.mark.parametrize(
    "orders",
    ["forced-ar+top=2", "max-prob+edit=0.9", "max-prob,lookahead-gain", "gumbel-prob", "max-prob+above=0.5"],
)
def test_policies_that_the_device_cannot_predict_run_without_speculation(
    model: NetworkModel, speculators: list[Speculator], orders: str
) -> None:
    decode(model, parse_policies(orders), 0.0, EVEN[:1], True)
    assert totals(speculators) == (0, 0)


class Contrary(ConfidenceOrder):
    """Says that it reads one number and goes by its opposite."""

    id = "contrary"
    summary = "least probable first"
    reads: Reading = "top"

    def scores(self, view: StepView[PositionStats]) -> Any:
        return -view.stats.top_logprob


def test_mispredictions_change_nothing_and_end_speculation(
    model: NetworkModel, speculators: list[Speculator]
) -> None:
    expected = decode(model, [Contrary()], 0.0, EVEN, False)
    assert_same(decode(model, [Contrary()], 0.0, EVEN, True), expected)
    hits, misses = totals(speculators)
    assert hits == 0
    assert misses == ALLOWED_MISSES + 1


def test_a_single_misprediction_changes_nothing(
    model: NetworkModel, speculators: list[Speculator], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decode(model, parse_policies("max-prob"), 1.0, UNEVEN, False)
    choose, calls = speculate_torch.choose_in_torch, []

    def sometimes_contrary(found: Any, *arguments: Any) -> Any:
        calls.append(1)
        turned = [-tensor if tensor.is_floating_point() else tensor for tensor in found]
        return choose(turned if len(calls) % 3 == 0 else found, *arguments)

    monkeypatch.setattr(speculate_torch, "choose_in_torch", sometimes_contrary)
    assert_same(decode(model, parse_policies("max-prob"), 1.0, UNEVEN, True), expected)
    hits, misses = totals(speculators)
    assert hits > misses > 0


@pytest.mark.parametrize("place", ["forward", "head"])
def test_running_out_of_memory_in_speculation_changes_nothing(
    model: NetworkModel, speculators: list[Speculator], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    expected, calls = decode(model, parse_policies("max-prob"), 0.0, EVEN, False), []
    owner, name = {"forward": (type(model.engine), "run_once"), "head": (speculate_torch, "start_reduction")}[
        place
    ]
    original = getattr(owner, name)

    def cramped(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, cramped)
    assert_same(decode(model, parse_policies("max-prob"), 0.0, EVEN, True), expected)
    assert totals(speculators) == (2, 0)  # not tried again


def test_full_attention_speculates_too(
    tmp_path_factory: pytest.TempPathFactory, speculators: list[Speculator]
) -> None:
    for family in ("llada", "Dream"):  # rows as they are, rows shifted by one
        folder = tmp_path_factory.mktemp(family)
        write_dense(folder, family=family)
        full = load_model(str(folder), device="cpu", dtype="float32").with_block_size(6)
        policies = parse_policies("max-prob,random")
        expected = decode(full, policies, 1.0, UNEVEN, False)
        assert_same(decode(full, policies, 1.0, UNEVEN, True), expected)
        hits, misses = totals(speculators)
        assert hits > 5
        assert misses == 0
        speculators.clear()


class Replay:
    """Runs the network again on the static input, as a recorded graph would."""

    def __init__(self, again: Callable[[], Any], hidden: Any) -> None:
        self.again, self.hidden = again, hidden

    def replay(self) -> None:
        self.hidden.copy_(self.again())


@pytest.mark.parametrize("whole_tokens", [8192, 16])
def test_recorded_forwards_are_given_what_is_on_the_device(
    tmp_path: Path, speculators: list[Speculator], monkeypatch: pytest.MonkeyPatch, whole_tokens: int
) -> None:
    """With all rows, and with the wanted ones as an input; batches are padded to a bucket."""

    def record(owner: GraphedNetwork, windows: Any, pool: Any, mode: Any, rows: Any) -> _Recorded:
        def again() -> Any:
            return run_plainly(owner.network, windows, pool, mode, rows)

        hidden = again().clone()
        return _Recorded(Replay(again, hidden), windows.packed_NX, rows, hidden)  # type: ignore[arg-type]

    write_llada2(tmp_path, num_hidden_layers=2, num_experts=4, n_group=2, topk_group=1, num_experts_per_tok=1)
    model = load_llada2(tmp_path, device="cpu", block_size=6)
    expected = decode(model, parse_policies("max-prob"), 0.0, (6,) * 5, False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(graphs, "WHOLE_TOKENS", whole_tokens)
    monkeypatch.setattr(GraphedNetwork, "_record", record)
    engine = model.engine
    monkeypatch.setattr(engine, "_graphs", GraphedNetwork(engine.network, engine.pool))
    found = decode(model, parse_policies("max-prob"), 0.0, (6,) * 5, True)
    np.testing.assert_array_equal(found.columns["token_id"], expected.columns["token_id"])
    np.testing.assert_allclose(found.columns["logq"], expected.columns["logq"], atol=1e-5)
    hits, misses = totals(speculators)
    assert hits == NEW - 2
    assert misses == 0


def passes(gate: SpeculationGate, start: float, speculation: float, wait: float, blocks: int) -> list[int]:
    """Return how many of 8 passes of each block are speculative with these times (seconds)."""
    counts = []
    for _ in range(blocks):
        found, speculative = False, 0
        for last in (*[False] * 7, True):
            follows = found or gate.started(start)
            if follows and not last:
                gate.speculated(speculation)
            if found:
                gate.waited_for_speculation(max(0.0, wait + start - speculation))
            elif not follows or last:
                gate.waited(wait)
            speculative += found
            found = follows and not last
        counts.append(speculative)
    return counts


@pytest.mark.parametrize(
    ("speculation", "wait", "expected"),
    [
        (1.4e-3, 10e-3, [5, 7, 7, 7]),  # the device takes most time: two trials, then always
        (0.9e-3, 0.3e-3, [5, 7, 7, 7]),  # a short wait is hidden
        (1.4e-3, 0.3e-3, [5, 0, 0, 0]),  # costs more than it hides: noticed in the second block
        (0.8e-3, 0.05e-3, [5, 5, 5, 5]),  # the device is always done first, but there is no extra cost
    ],
)
def test_the_gate_allows_speculation_that_hides_more_than_it_costs(
    speculation: float, wait: float, expected: list[int]
) -> None:
    assert TRIAL_PASSES == 2
    assert IDLE_SECONDS > 0.05e-3
    assert passes(SpeculationGate(), 0.8e-3, speculation, wait, 4) == expected
