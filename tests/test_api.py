"""The Python calls: tables, spec, resume, measurements, bad input."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import orderlens as ol
from orderlens.errors import RunError, UserInputError
from orderlens.store.samples import SAMPLES_SCHEMA
from orderlens.store.schema import SCHEMAS
from orderlens.studies.replicate import replicate as front_door

TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps. "
SAMPLES = [ol.Sample("a", TEXT[:20], TEXT[20:]), ol.Sample("b", "", TEXT[:33]), ol.Sample("c", TEXT, "ok")]


@pytest.fixture(scope="module")
def scored():
    return ol.score("hmm", SAMPLES, ["forced-ar", "random:3", "oracle-min-q"])


def test_scores_equal_the_joint_to_1e_9(scored):
    model = ol.load_model("hmm")
    frame = scored.samples().to_pandas()
    for sample in SAMPLES:
        prompt, target = (model.tokenizer.encode(part) for part in (sample.prompt, sample.target))
        truth = model.joint_log_prob(prompt + target) - model.joint_log_prob(prompt)
        mine = frame[frame.sample_id == sample.id]
        assert len(mine) == 3
        assert np.abs(mine.log_prob - truth).max() / len(target) < 1e-9
        assert (mine.n == len(target)).all()


def test_interface_columns_exist(scored):
    """What the schemas must hold is in tests/store/test_schema.py; here a run fills them."""
    assert scored.reveals().to_arrow().column_names == SCHEMAS["reveals"].names
    assert scored.samples().to_arrow().column_names == SAMPLES_SCHEMA.names
    reveals = scored.reveals().to_pandas()
    assert set(reveals.order) == {"forced-ar", "random", "oracle-min-q"}
    assert set(reveals[reveals.order == "random"].seed) == {3}
    assert reveals[reveals.order != "random"].seed.isna().all()
    assert reveals.temperature.isna().all()
    assert scored.reveals().to_arrow().schema.field("logq").type == "double"
    assert len(scored.reveals().to_polars()) == len(reveals)


def test_generated_columns():
    run = ol.generate("hmm", ["hello", "what is"], ["max-prob", "random"], max_new_tokens=40, temperature=0.8)
    reveals = run.reveals().to_pandas()
    assert (reveals.temperature == 0.8).all()
    assert reveals.target_logprob.isna().all()
    assert (reveals.tempered_logq <= 0).all()
    outputs = run.outputs().to_pandas()
    assert set(outputs.sample_id) == {"0", "1"}
    assert set(outputs.finish_reason) <= {"eos", "length"}
    overflow = reveals[reveals.is_overflow]
    assert (overflow.position >= 5 + 40).all()
    counted = run.samples().to_pandas().set_index(["sample_id", "order"]).n.sort_index()
    kept = reveals[~reveals.is_overflow].groupby(["sample_id", "order"]).size().sort_index()
    assert counted.tolist() == kept.tolist()


def test_runs_in_a_folder_equal_runs_in_memory_and_resume(tmp_path, scored):
    orders = ["forced-ar", "random:3", "oracle-min-q"]
    first = ol.score("hmm", SAMPLES, orders, out=tmp_path / "run")
    again = ol.score("hmm", SAMPLES, orders, out=tmp_path / "run")
    keys = ["sample_id", "order", "step"]
    tables = [
        r.reveals().to_pandas().sort_values(keys).reset_index(drop=True) for r in (scored, first, again)
    ]
    assert np.array_equal(tables[0].logq, tables[1].logq)
    assert tables[1].equals(tables[2])
    assert ol.open_run(tmp_path / "run").spec["model"]["name"] == "hmm"


def test_another_spec_in_the_same_folder_is_refused(tmp_path):
    ol.score("hmm", SAMPLES, ["forced-ar"], out=tmp_path / "run")
    with pytest.raises(RunError, match="orders"):
        ol.score("hmm", SAMPLES, ["random"], out=tmp_path / "run")


def test_batch_size_does_not_change_the_numbers(scored):
    one_by_one = ol.score("hmm", SAMPLES, ["forced-ar", "random:3", "oracle-min-q"], batch_size=1)
    keys = ["sample_id", "order", "step"]
    left, right = (r.reveals().to_pandas().sort_values(keys) for r in (scored, one_by_one))
    assert np.abs(left.logq.to_numpy() - right.logq.to_numpy()).max() < 1e-12


def test_circulation_and_noise_are_zero_on_the_exact_model():
    run = ol.score("hmm", SAMPLES, ["forced-ar", "max-prob"], circulation=4, noise_floor=True, block_size=8)
    circulation = run.table("circulation").to_pandas()
    assert np.abs(circulation.gamma).max() < 1e-10
    assert set(circulation.order) == {"forced-ar", "max-prob"}
    noise = run.table("noise").to_pandas()
    assert set(noise.perturbation) == {"batch-size", "cache"}
    assert np.abs(noise.log_prob - noise.log_prob_perturbed).max() < 1e-9


def test_circulation_equals_the_plain_model_on_the_incoherent_one():
    model = ol.load_model("hmm:incoherence=0.6,block=8")
    ids = model.tokenizer.encode(TEXT)[:20]
    run = ol.score(model, [ol.Sample("a", ids[:4], ids[4:])], ["random"], circulation=50)
    frame = run.table("circulation").to_pandas()
    path = run.trace("a", "random").to_arrow()["position"].to_pylist()
    row = frame.iloc[len(frame) // 2]
    step = path.index(row.position_i)
    assert path[step + 1] == row.position_j

    def log_p(shown, position):
        visible = set(range(4)) | set(shown)
        window = [ids[k] if k in visible else model.mask_id for k in range(len(ids))]
        padded = window + [model.mask_id] * (-len(window) % 8)
        return model.log_probs(padded)[position, ids[position]]

    i, j, before = int(row.position_i), int(row.position_j), path[:step]
    gamma = log_p(before, i) + log_p([*before, i], j) - log_p(before, j) - log_p([*before, j], i)
    assert row.gamma == pytest.approx(gamma, abs=1e-10)
    assert abs(gamma) > 1e-6


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples given"),
        ([ol.Sample("a", "x", "")], "'a' has an empty target"),
        ([ol.Sample("a", "x")], "'a' has an empty target"),
        ([ol.Sample("a", "x", "y"), ol.Sample("a", "x", "z")], "'a' occurs twice"),
        ([ol.Sample("a", [1, 999], "y")], "token id 999 is outside the vocabulary"),
        ([ol.Sample("a", [-1], "y")], "token id -1"),
        ([ol.Sample("a", "x", [50])], "token id 50 is the mask id"),
    ],
)
def test_bad_samples_are_named(samples, message):
    with pytest.raises(UserInputError, match=message):
        ol.score("hmm", samples, ["forced-ar"])


def test_nothing_is_written_for_bad_input(tmp_path):
    too_long = [ol.Sample("a", "x", "y"), ol.Sample("long", [0] * 40000, "y")]
    with pytest.raises(UserInputError, match="'long'"):
        ol.score("hmm", too_long, ["forced-ar"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_front_door_is_light_and_complete():
    assert sorted(ol.__all__) == ol.__all__
    assert all(getattr(ol, name) is not None for name in ol.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ol.nothing  # noqa: B018


def test_the_four_verbs_name_their_options_alike():
    shared = {"device", "dtype", "block_size", "batch_size", "out"}
    for verb in (ol.score, ol.generate, ol.evaluate, front_door):
        assert shared <= set(inspect.signature(verb).parameters), verb
    for verb in (ol.score, ol.generate, ol.evaluate):
        assert {"anchor", "progress"} <= set(inspect.signature(verb).parameters), verb
    for verb in (ol.generate, ol.evaluate, front_door):
        assert "seed" in inspect.signature(verb).parameters


def test_a_misspelt_keyword_is_named():
    with pytest.raises(TypeError, match=r"score\(\) got an unexpected keyword argument 'devise'"):
        ol.score("hmm", [], ["forced-ar"], devise="cpu")
    with pytest.raises(TypeError, match=r"generate\(\) missing a required argument: 'orders'"):
        ol.generate("hmm", [])
