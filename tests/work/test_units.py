"""Unit keys decide what is resumed: they must never change."""

from __future__ import annotations

import json

import numpy as np
import pytest

from orderlens.errors import UserInputError
from orderlens.models.abilities import SuggestsBatch
from orderlens.samples import EncodedSample
from orderlens.work.units import DEFAULT_BATCH, Unit, cut_units, unit_samples

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
    assert unit_samples(hmm, 6, None, 128) == 2
    assert unit_samples(hmm, 1, None, 8) == DEFAULT_BATCH
    assert unit_samples(hmm, 4, None, 16384) == 1
    assert unit_samples(hmm, 4, 7, 16384) == 7


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
    assert unit_samples(large, 4, None, 10**6) == 256
    assert unit_samples(large, 5000, None, 1) == 1
