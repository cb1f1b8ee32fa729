"""Unit keys decide what is resumed: they must never change."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import orderlens as ol
from orderlens import Engine, Sample
from orderlens.errors import UserInputError
from orderlens.models.abilities import SuggestsBatch
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.models.loading import load_model
from orderlens.runs.job import score_job
from orderlens.runs.options import Computing
from orderlens.runs.spec import (
    CPU_FLOPS,
    CPU_UNIT_S,
    DEFAULT_BATCH,
    Unit,
    cut_units,
    even_size,
    shared_size,
    unit_shape,
)
from orderlens.testing import small_model
from orderlens.texts.samples import EncodedSample

SAMPLES = [EncodedSample(str(i), np.arange(i), np.arange(3), "task") for i in range(5)]


def test_keys_are_those_of_earlier_versions() -> None:
    assert Unit(tuple(SAMPLES[:2])).key() == "ee686698e72b717415651cbb"
    assert Unit(tuple(SAMPLES[:2]), 0.5).key() == "a76c78075a2782415daec4b4"


def test_keys_tell_other_orders_apart_and_ignore_extras() -> None:
    plain = Unit(tuple(SAMPLES[:2]))
    assert plain.key() != Unit(plain.samples, orders=("random:1",)).key()
    assert plain.key() == Unit(plain.samples, extras=({"document": {}}, {})).key()


def test_json_there_and_back() -> None:
    unit = Unit(tuple(SAMPLES[:3]), 0.7, ("random:1",), ({"document": {"a": 1}},) * 3)
    again = Unit.from_json(json.loads(json.dumps(unit.to_json())))
    assert again.key() == unit.key()
    assert again.extras == unit.extras
    assert again.samples[2].prompt.dtype == np.int64


def test_samples_and_extras_are_cut_alike() -> None:
    units = cut_units(SAMPLES, 2, 0.0, extras=[{"n": i} for i in range(5)])
    assert [[extra["n"] for extra in unit.extras] for unit in units] == [[0, 1], [2, 3], [4]]
    assert [[sample.id for sample in unit.samples] for unit in units] == [["0", "1"], ["2", "3"], ["4"]]


def test_small_models_get_units_that_take_seconds(hmm) -> None:
    assert unit_shape(hmm, 6, 128, 1, on_cpu=True) == (2, None)
    assert unit_shape(hmm, 1, 8, 1, on_cpu=True) == (DEFAULT_BATCH, None)
    assert unit_shape(hmm, 4, 16384, 1, on_cpu=True) == (1, None)


class Measured:
    """A model that knows how many weights it has."""

    block_size = 32

    def __init__(self, n_parameters: int, attention: str = "block-causal") -> None:
        self.n_parameters, self.attention = n_parameters, attention

    def seconds(self, traces: int, n_tokens: int, context: int) -> float:
        width = context if self.attention == "full" else self.block_size
        return 2 * self.n_parameters * width * traces * n_tokens / CPU_FLOPS


@pytest.mark.parametrize("n_parameters", [10**5, 24_390_528, 135_000_000])
@pytest.mark.parametrize("attention", ["block-causal", "full"])
@pytest.mark.parametrize("n_orders", [1, 6, 13])
def test_units_on_a_cpu_last_about_ten_seconds_or_hold_one_trace(
    n_parameters: int, attention: str, n_orders: int
) -> None:
    model = Measured(n_parameters, attention)
    size, unit_orders = unit_shape(model, n_orders, 64, 80, on_cpu=True)  # type: ignore[arg-type]
    traces = size * (unit_orders or n_orders)
    assert model.seconds(traces, 64, 80) <= CPU_UNIT_S or traces == 1
    assert unit_orders is None or (size == 1 and unit_orders < n_orders)


def test_the_bundled_network_is_cut_by_orders_where_a_sample_takes_long() -> None:
    tiny = load_model("tiny", device="cpu")
    samples = [Sample(str(i), [5, 6], list(range(10, 74))) for i in range(3)]
    orders = [f"random:{seed}" for seed in range(6)]
    job = score_job(tiny, samples, orders, Computing(device="cpu"))
    assert (job.spec.batch_size, job.spec.unit_orders, len(job.units)) == (1, 3, 6)
    assert [unit.samples[0].id for unit in job.units] == list("001122")
    assert job.units[0].orders == tuple(orders[:3])
    assert len({unit.key() for unit in job.units}) == 6
    assert score_job(tiny, samples, orders, Computing(batch_size=2)).spec.unit_orders is None
    compared = score_job(tiny, samples, orders, Computing(device="cpu"), noise_floor=True)
    assert (compared.spec.batch_size, compared.spec.unit_orders) == (5, None)  # in their batch and alone


def test_numbers_do_not_depend_on_how_units_are_cut(tmp_path, monkeypatch) -> None:
    model, orders = small_model(), ["forced-ar", "max-prob", "random:1", "random:2", "random:3"]
    samples = [Sample(str(i), [5, 6, i + 7], list(range(10 + i, 22 + i))) for i in range(3)]
    whole = ol.score(model, samples, orders, batch_size=3).reveals().to_pandas()
    seconds = Measured(model.n_parameters).seconds(1, 12, 0) * 8 / 32  # its blocks hold 8 tokens
    monkeypatch.setattr("orderlens.runs.spec.CPU_UNIT_S", 2.5 * seconds)
    run = ol.score(model, samples, orders, out=tmp_path / "run")
    assert run.spec["unit_orders"] == 2
    grown = ol.score(model, samples, [*orders, "reverse-ar"], out=tmp_path / "run", extend=True)
    assert grown.is_complete
    key = ["sample_id", "order", "seed", "step"]
    cut = run.reveals().to_pandas().sort_values(key, ignore_index=True)
    whole = whole.sort_values(key, ignore_index=True)
    assert cut[[*key, "position", "token_id"]].equals(whole[[*key, "position", "token_id"]])
    np.testing.assert_allclose(cut["logq"], whole["logq"], atol=1e-5)
    monkeypatch.setattr("orderlens.runs.spec.CPU_UNIT_S", 1e6)  # a resumed run keeps its units
    assert ol.score(model, samples, orders, out=tmp_path / "run").spec["unit_orders"] == 2


def test_a_template_and_a_suffix_with_the_same_tokens_are_two_units() -> None:
    tokens = np.array([4, 5])
    suffix, template = EncodedSample("a", tokens, suffix=tokens), EncodedSample("a", tokens, template=tokens)
    assert Unit((suffix,)).key() != Unit((template,)).key()


@pytest.mark.parametrize(("n", "size", "sizes"), [(0, 3, []), (3, 3, [3]), (4, 3, [3, 1]), (2, 9, [2])])
def test_the_last_unit_takes_what_is_left(n: int, size: int, sizes: list[int]) -> None:
    units = cut_units(SAMPLES[:n], size, None, ("random:1",))
    assert [len(unit.samples) for unit in units] == sizes
    assert all(unit.orders == ("random:1",) for unit in units)
    with pytest.raises(UserInputError, match="batch_size=0 must be at least 1"):
        cut_units(SAMPLES, 0)


def test_a_model_that_knows_what_fits_gets_many_sequences(hmm) -> None:
    class Large:
        attention = "block-causal"

        def suggested_batch(self, positions: int) -> int:
            return 1

    large = Large()
    assert isinstance(large, SuggestsBatch)
    assert not isinstance(hmm, SuggestsBatch)
    assert unit_shape(large, 4, 10**6, 1, on_cpu=False) == (256, None)
    assert unit_shape(large, 5000, 1, 1, on_cpu=False) == (1, None)
    large.unit_sequences = 3072  # one that says how many it wants
    assert unit_shape(large, 5, 128, 1, on_cpu=False) == (614, None)


def test_several_units_are_equal() -> None:
    assert [even_size(333, count) for count in (0, 1, 333, 334, 1000)] == [333, 333, 333, 167, 250]


class Roomy(HiddenMarkovModel):
    """Knows what fits, like the networks behind the engine."""

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        return 1024


class Elsewhere(Roomy):
    """The same on a GPU, as far as can be seen."""

    device = SimpleNamespace(type="cuda")


@pytest.mark.parametrize(
    ("kind", "device", "engine", "wanted"),
    [
        (Roomy, None, "local", 4),
        (Roomy, "cpu", "local", 4),
        (Roomy, "cpu", "ray", 4),
        (Roomy, None, "ray", 256),  # whose actors may have GPUs that this machine lacks
        (Elsewhere, None, "local", 256),
    ],
)
def test_on_a_processor_an_interrupt_costs_little(kind, device, engine, wanted) -> None:
    options = Computing(device=device, engine=Engine(engine))
    samples = [Sample(str(i), [1], [2] * 128) for i in range(5)]
    job = score_job(kind(block_size=8), samples, ["forced-ar", "random", "random:1", "random:2"], options)
    assert job.spec.batch_size == wanted


@pytest.mark.parametrize(
    ("size", "count", "groups", "workers", "wanted", "units"),
    [
        (256, 1000, 1, 1, 256, 4),  # alone nothing changes
        (256, 1000, 1, 4, 84, 12),  # three rounds of even units, not below a quarter
        (256, 1000, 1, 8, 125, 8),  # four units would leave half of the workers idle
        (256, 1000, 1, 64, 16, 63),
        (256, 23713, 1, 64, 93, 255),  # 93 units would take two rounds, the second one half empty
        (204, 1000, 7, 64, 56, 126),  # groups are cut apart
        (204, 1000, 7, 8, 200, 35),
        (32, 3, 1, 8, 1, 3),  # no more units than samples
        (2, 1000, 1, 3, 2, 500),  # plenty of units: as they were
        (32, 0, 1, 8, 32, 0),
    ],
)
def test_units_are_cut_for_those_who_share_them(size, count, groups, workers, wanted, units) -> None:
    found = shared_size(size, count, groups, workers)
    assert found == wanted
    assert groups * math.ceil(count / found) == units


@pytest.mark.parametrize("workers", [2, 3, 8, 64, 1000])
def test_nobody_is_idle_and_no_round_is_added(workers) -> None:
    for size in (1, 7, 64, 256):
        for count in (1, 2, 63, 64, 500, 4001):
            for groups in (1, 2, 7):
                found = shared_size(size, count, groups, workers)
                before, after = (groups * math.ceil(count / item) for item in (size, found))
                assert 1 <= found <= size
                assert math.ceil(after / workers) <= max(math.ceil(before / workers), 4)
                if groups * count >= 2 * workers:
                    assert after >= workers / 2
                if groups == 1 and count >= workers:
                    assert after > workers / 2
