"""Running out of memory: halving, remembering, resuming; the numbers must not notice."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orderlens as ol
from orderlens.common.machine import is_out_of_memory
from orderlens.decode.batches import OVERLAP_SIZE, BatchLimit, ProgressReporter, interleave, split_for_overlap
from orderlens.errors import DeviceMemoryError
from orderlens.models.protocol import HiddenRows

TEXTS = ["the quick brown fox", "jumps", "", "over the lazy dog and", "then it sleeps", "a", "b c d", "end"]
SAMPLES = [ol.Sample(f"s{i}", text, "and more text follows"[: 9 + i]) for i, text in enumerate(TEXTS)]
SCORED = ["forced-ar", "random:3", "max-prob", "oracle-min-q"]
GENERATED = ["max-prob", "random:3", "entropy", "forced-ar"]


@dataclass
class Cramped:
    """A real model on a device that holds few slots, few cached tokens, or few rows of the head."""

    model: Any
    slots: int = 10**9
    tokens: int = 10**9
    rows: int = 10**9
    fail: Any = DeviceMemoryError
    failures: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def with_block_size(self, block_size: int) -> Cramped:
        self.model = self.model.with_block_size(block_size)
        return self

    def open_session(self) -> CrampedSession:
        return CrampedSession(self, self.model.open_session())

    def check(self, what: str, amount: int, limit: int) -> None:
        if amount > limit:
            self.failures.append(what)
            raise self.fail(f"no memory left for {amount} {what}")


class CrampedSession:
    def __init__(self, place: Cramped, session: Any) -> None:
        self.place, self.session = place, session
        self.lengths = np.zeros(0, np.int64)

    def hold(self, lengths: Any) -> None:
        self.place.check("slots", len(lengths), self.place.slots)
        self.place.check("tokens", int(np.sum(lengths)), self.place.tokens)
        self.lengths = np.asarray(lengths)

    def prefill(self, prefixes: Any, offsets: Any) -> None:
        self.hold([len(prefix) for prefix in prefixes])
        self.session.prefill(prefixes, offsets)

    def extend(self, slots: Any, tokens_NW: Any) -> None:
        grown = self.lengths.copy()
        grown[slots] += tokens_NW.shape[1]
        self.hold(grown)
        self.session.extend(slots, tokens_NW)

    def keep(self, slots: Any) -> None:
        self.hold(self.lengths[slots])
        self.session.keep(slots)

    def evaluate(self, states: Any) -> Any:
        found = self.session.evaluate(states)
        if not isinstance(found, HiddenRows):
            self.place.check("rows", len(states.row_state_R), self.place.rows)
            return found
        return replace(found, head=CrampedHead(self.place))


class CrampedHead:
    """The head itself is where memory ends."""

    def __init__(self, place: Cramped) -> None:
        from orderlens.decode.head_torch import ChunkedHead

        self.place, self.head = place, ChunkedHead()

    def reduce(self, rows: HiddenRows, eos_ids: Any, targets_R: Any, draw: Any = None) -> Any:
        if draw is None:
            self.place.check("rows", len(rows.hidden_RD), self.place.rows)
        return self.head.reduce(rows, eos_ids, targets_R, draw)


class Count:
    def __init__(self) -> None:
        self.done = self.total = 0

    def __call__(self, steps: int = 1) -> None:
        self.done += steps

    def set_total(self, total: int) -> None:
        self.total = total


def same(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    """Every table equal row by row: bit by bit, or with log-probabilities that differ in the last bits.

    How many sequences are multiplied in one call decides which library routine does it, on some machines.
    """
    if not tolerance:
        names = ("reveals", "outputs")
        return all(left.table(name).to_arrow().equals(right.table(name).to_arrow()) for name in names)
    found, wanted = (run.reveals().to_pandas() for run in (left, right))
    floats = [name for name in wanted if name.endswith(("logq", "logprob")) or name == "entropy"]
    close = np.allclose(found[floats], wanted[floats], rtol=0, atol=tolerance, equal_nan=True)
    return close and found.drop(columns=floats).equals(wanted.drop(columns=floats))


def score(model: Any, samples: Any = SAMPLES, **options: Any) -> Any:
    return ol.score(model, samples, SCORED, block_size=8, **options)


def generate(model: Any, samples: Any = SAMPLES, **options: Any) -> Any:
    wanted = {"max_new_tokens": 20, "temperature": [0.0, 0.9], "block_size": 8, "stop_at_eos": False}
    return ol.generate(model, samples, GENERATED, **(wanted | options))


@pytest.fixture(scope="module")
def whole_score(hmm):
    return score(hmm)


@pytest.fixture(scope="module")
def whole_generation(hmm):
    return generate(hmm)


@pytest.mark.parametrize(("slots", "failures"), [(4, 1), (3, 2), (1, 3)])
def test_scoring_in_halves_is_the_same(hmm, whole_score, slots, failures, caplog):
    small, progress = Cramped(hmm, slots=slots), Count()
    with caplog.at_level(logging.WARNING):
        run = score(small, progress=progress)
    assert same(run, whole_score, 1e-12)
    assert small.failures == ["slots"] * failures
    assert progress.done == progress.total
    assert len(caplog.messages) == failures
    assert (
        caplog.messages[0] == "out of memory with 8 sequences per batch; retrying with 4, no results are lost"
    )


@pytest.mark.parametrize(("slots", "tolerance"), [(16, 1e-12), (5, 1e-12)])
def test_generating_in_halves_is_the_same(hmm, whole_generation, slots, tolerance):
    small, progress = Cramped(hmm, slots=slots), Count()
    run = generate(small, progress=progress)
    assert same(run, whole_generation, tolerance)
    assert small.failures
    assert progress.done >= progress.total  # completed blocks are counted too


@pytest.mark.parametrize(("tokens", "tolerance"), [(700, 1e-12), (100, 1e-12)])
def test_memory_that_ends_in_the_middle_of_decoding(hmm, whole_generation, tokens, tolerance):
    """The cache grows with every block; chains that have to wait resume from their last pass."""
    small, whole, progress = Cramped(hmm, tokens=tokens), Count(), Count()
    generate(hmm, progress=whole)
    run = generate(small, progress=progress)
    assert same(run, whole_generation, tolerance)
    assert small.failures
    assert progress.done == whole.done  # nothing was decoded twice


@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.slow
def test_memory_that_ends_in_the_head(make_transformer, attention):
    """Torch's own error, raised by the head; the network's numbers may differ in the last bits only."""
    torch = pytest.importorskip("torch")
    model = make_transformer(attention)
    ids = np.random.default_rng(0).integers(2, 50, (8, 40)).tolist()
    samples = [ol.Sample(f"s{i}", row[: 3 * i + 3], row[-12:]) for i, row in enumerate(ids)]
    for call, rows in ((score, 50), (generate, 20)):
        small = Cramped(model, rows=rows, fail=torch.OutOfMemoryError)
        assert same(call(small, samples), call(model, samples), 1e-5)
        assert small.failures


@pytest.mark.parametrize("call", [score, generate])
def test_the_smaller_size_is_remembered(hmm, call):
    small = Cramped(hmm, slots=3)
    call(small, batch_size=4)
    units = 2 if call is score else 4
    assert len(small.failures) < units * 2  # learnt in the first unit, not in each


@pytest.mark.parametrize("call", [score, generate])
def test_a_stored_run_and_its_resumption(hmm, call, tmp_path):
    given = {"samples": SAMPLES[:4], "batch_size": 2}
    whole = call(hmm, **given, out=tmp_path / "whole")
    halves = call(Cramped(hmm, slots=1), **given, out=tmp_path / "halves")
    assert same(halves, whole, 1e-12)
    stopped = Cramped(hmm, slots=1)

    class Stop(Count):
        def __call__(self, steps: int = 1) -> None:
            super().__call__(steps)
            if self.done > self.total / 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(stopped, **given, out=tmp_path / "resumed", progress=Stop())
    resumed = call(Cramped(hmm, slots=1), **given, out=tmp_path / "resumed")
    assert same(resumed, halves)


@pytest.mark.parametrize("call", [score, generate])
def test_one_sequence_that_does_not_fit_is_one_clear_line(hmm, call):
    with pytest.raises(DeviceMemoryError, match="does not fit in memory even alone") as caught:
        call(Cramped(hmm, slots=0), SAMPLES[:4])
    assert "sample '" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_are_not_swallowed(hmm):
    with pytest.raises(RuntimeError, match="no memory left for"):  # not one of the words that count
        score(Cramped(hmm, slots=2, fail=RuntimeError))


def test_what_counts_as_out_of_memory():
    torch = pytest.importorskip("torch")
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(torch.OutOfMemoryError())
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert is_out_of_memory(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_model_that_knows_what_fits_is_asked(hmm, whole_generation):
    class Knowing(Cramped):
        def suggested_batch(self, tokens_each: int) -> int:
            self.requested = tokens_each
            return 3

    small = Knowing(hmm, slots=3)
    run = generate(small)
    assert small.failures == []
    assert small.requested == 48  # 21 + 20 tokens in whole blocks of 8
    # 2,048 reveals per unit on a processor, no matter what fits: 4 orders of 20 tokens each
    assert run.spec["batch_size"] == whole_generation.spec["batch_size"] == 25
    assert same(run, whole_generation, 1e-12)


@given(n=st.integers(1, 50), limit=st.integers(1, 60))
def test_parts_are_few_and_equal(n, limit):
    parts = BatchLimit(limit).parts(range(n))
    assert [item for part in parts for item in part] == list(range(n))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == -(-n // limit)


def test_progress_is_reported_once():
    reported: list[int] = []
    report = ProgressReporter(reported.append)
    for amount, fails in ((5, True), (3, True), (4, False), (6, False)):
        report.start()
        report(amount)
        if fails:
            report.failed()
    assert sum(reported) == 10


def test_iterators_of_different_lengths_advance_alternately():
    seen = []

    def walk(name, steps):
        for step in range(steps):
            seen.append((name, step))
            yield

    interleave([walk("a", 3), walk("b", 1), walk("c", 2)])
    assert seen == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2)]
    assert split_for_overlap(range(OVERLAP_SIZE)) == [range(OVERLAP_SIZE)]
    assert [len(part) for part in split_for_overlap(range(2 * OVERLAP_SIZE + 1))] == [385, 384]
    assert [len(part) for part in split_for_overlap(range(68), sequences_per_item=15)] == [34, 34]
    assert split_for_overlap([1], sequences_per_item=10**6) == [[1]]
