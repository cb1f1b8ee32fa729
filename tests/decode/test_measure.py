"""The noise floor: one thing changed at a time, on the fast path; what it tells of its progress."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from orderlens.decode import measure
from orderlens.decode.measure import noise_table
from orderlens.decode.score import score_batch
from orderlens.errors import DeviceMemoryError, ModelOutputError
from orderlens.models.abilities import CastsDtype, other_dtype
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.runs import compute
from orderlens.runs.spec import RunSpec, Unit, describe_data, describe_model
from orderlens.texts.samples import EncodedSample

ORDERS = parse_policies(["forced-ar", "random:0"])
SAMPLES = [EncodedSample(f"s{i}", np.arange(4) + i, np.arange(12) % 9 + i) for i in range(2)]
HMM = load_model("hmm:block=8")


@pytest.fixture(scope="module")
def llada2(tmp_path_factory):
    pytest.importorskip("torch")
    from orderlens.models.families.llada2 import load_llada2
    from support.llada2 import write_llada2

    folder = tmp_path_factory.mktemp("llada2")
    write_llada2(folder, num_hidden_layers=2)
    return load_llada2(folder, device="cpu", block_size=8)


def rows_of(model, **options):
    columns = score_batch(model, SAMPLES, ORDERS)
    return noise_table(model, SAMPLES, ORDERS, columns, **options).to_pandas()


@pytest.mark.needs_torch
def test_one_thing_is_changed_at_a_time(llada2, monkeypatch):
    monkeypatch.setattr(measure, "device_type", lambda _: "cuda")  # all samples and orders without a cache
    frame = rows_of(llada2)
    assert frame.groupby("perturbation").size().to_dict() == {"batch-size": 4, "bfloat16": 4, "cache": 4}
    change = (frame.log_prob - frame.log_prob_perturbed).abs() / frame.n
    assert change[frame.perturbation != "bfloat16"].max() < 1e-6
    assert 1e-6 < change[frame.perturbation == "bfloat16"].max() < 0.1
    assert set(frame.n) == {12}


@pytest.mark.needs_torch
def test_the_other_precision_of_a_model_in_bfloat16_is_float16(llada2):
    rough = llada2.with_dtype("bfloat16")
    assert isinstance(llada2, CastsDtype)
    assert (other_dtype(llada2), other_dtype(rough)) == ("bfloat16", "float16")
    assert str(rough.with_dtype("float16").dtype) == "torch.float16"
    assert rough.digest != llada2.digest
    mapped = rough.weights.layers[1].feed_forward.experts
    assert len(mapped) == len(llada2.weights.layers[1].feed_forward.experts)
    assert {str(matrix.dtype) for matrix in mapped.matrices(0)} == {"torch.bfloat16"}


@pytest.mark.parametrize("error", [ModelOutputError("NaN"), DeviceMemoryError("no memory left")])
def test_a_precision_that_fails_is_left_out_with_a_word(caplog, error):
    class Castable(type(HMM)):
        def with_dtype(self, name):
            raise error

    model = Castable()
    with caplog.at_level(logging.WARNING):
        frame = rows_of(model)
    assert set(frame.perturbation) == {"batch-size", "cache"}
    assert "not measured in bfloat16" in caplog.text


def test_other_errors_are_not_hidden():
    class Castable(type(HMM)):
        def with_dtype(self, name):
            raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        rows_of(Castable())


def test_on_a_cpu_the_cache_is_left_out_for_one_path_only():
    frame = rows_of(HMM)
    assert frame.groupby("perturbation").size().to_dict() == {"batch-size": 4, "cache": 1}
    assert np.abs(frame.log_prob - frame.log_prob_perturbed).max() < 1e-9


def progress_of(kind, model, **settings):
    orders, data = tuple(order.spec for order in ORDERS), describe_data(SAMPLES, {})
    spec = RunSpec(kind, describe_model(model), model.block_size, orders, data, batch_size=2, **settings)
    unit, calls = Unit(tuple(SAMPLES)), []
    tables = compute.compute(spec, unit, model, compute.ComputeContext(on_reveals=calls.append))
    assert "noise" in tables
    assert sum(calls) == compute.planned_reveals(spec, unit) == 48
    return calls


def test_measuring_counts_towards_progress():
    scored = 24  # of 48 tokens: each is scored once, and once more alone
    for kind, settings in (("score", {"noise_floor": True}), ("measure", {"circulation": 2})):
        assert scored in np.cumsum(progress_of(kind, HMM, **settings)), kind


def test_progress_counts_another_precision_that_the_model_does_not_have():
    class Castable(type(HMM)):
        def with_dtype(self, name):
            return None

    assert 16 in np.cumsum(progress_of("score", Castable(), noise_floor=True))
