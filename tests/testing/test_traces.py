"""Made traces are what a decoder could have stored: they pass a commit and give the numbers put in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.store.codec import sort_rows
from orderlens.store.folder import LocalFolder
from orderlens.store.schema import table_schema
from orderlens.store.verify import verify_run
from orderlens.testing import make_run, make_table, make_trace, random_path, random_trace


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(0, 70), st.integers(1, 40), st.sampled_from(["forced-ar", "max-prob"])
)
def test_a_random_trace_is_whole_and_its_positions_form_a_distribution(seed, n, block_size, order):
    trace = random_trace(np.random.default_rng(seed), "a", order, n, block_size=block_size, n_prompt=3)
    assert trace.schema.equals(table_schema("reveals", real=trace.schema.field("logq").type))
    found = trace.to_pandas()
    assert sorted(found["position"]) == list(range(3, n + 3))
    assert (found["block"].diff().dropna() >= 0).all()
    q, top, second = (np.exp(found[name]) for name in ("logq", "max_logprob", "second_logprob"))
    assert (top >= q - 1e-12).all()
    assert np.allclose(top + second, 1)
    assert np.allclose(found["entropy"], -(top * np.log(top) + second * np.log(np.maximum(second, 1e-300))))
    assert (found["is_argmax"] == (q > 0.5)).all()


def test_the_numbers_given_are_the_numbers_stored(tmp_path):
    """Path, tokens, passes, EOS and overflow of one small trace, through a folder and back."""
    trace = make_trace(
        "a",
        "max-prob+top=2",
        np.log([0.9, 0.25, 0.5, 1.0]),
        path=[2, 0, 1, 3],
        tokens=[7, 8, 0, 1],
        forward=[0, 0, 1, 2],
        temperature=1.0,
        n_prompt=5,
        n_requested=3,
        block_size=3,
    )
    key = {"sample_id": "a", "order": "max-prob+top=2", "temperature": 1.0, "sample_seed": 0}
    run = make_run(
        [trace], verdicts=[key | {"correct": True, "mood": "good"}], outputs=[key | {"text": "x"}]
    ).save(tmp_path / "run")
    assert verify_run(LocalFolder(tmp_path / "run")).ok
    rows = run.reveals().to_pandas()
    assert rows["position"].tolist() == [7, 5, 6, 8]
    assert rows["token_id"].tolist() == [0, 7, 8, 1]
    assert rows["n_committed"].tolist() == [2, 2, 1, 1]
    assert rows["block"].tolist() == [0, 0, 0, 1]
    assert rows["is_eos"].tolist() == [True, False, False, False]
    assert rows["is_overflow"].tolist() == rows["is_special"].tolist() == [False, False, False, True]
    sample = run.samples().to_pandas().iloc[0]
    assert (sample["n"], sample["n_content"], sample["n_eos"], sample["n_overflow"]) == (3, 2, 1, 1)
    assert (sample["n_passes_requested"], sample["sample_seed"]) == (2, 0)
    assert run.table("verdicts").to_arrow().to_pylist()[0]["mood"] == "good"


def test_certain_and_impossible_tokens_are_numbers():
    found = make_trace("a", "forced-ar", [0.0, -np.inf]).to_pandas()
    assert found["max_logprob"].tolist() == [0.0, 0.0]
    assert found["second_logprob"].tolist() == [-np.inf, -np.inf]
    assert found["entropy"].tolist() == [0.0, 0.0]


def test_paths_follow_the_order_inside_each_block():
    rng = np.random.default_rng(0)
    assert random_path(rng, 5, "forced-ar", 3).tolist() == [0, 1, 2, 3, 4]
    assert random_path(rng, 5, "reverse-ar", 3).tolist() == [2, 1, 0, 4, 3]
    assert {frozenset(random_path(rng, 6, "random", 3)[:3].tolist()) for _ in range(20)} == {
        frozenset({0, 1, 2})
    }


def test_what_cannot_be_a_trace_is_refused():
    with pytest.raises(ValueError, match=r"path must visit each of 0…2 once, not \[0, 2, 2\]"):
        make_trace("a", "random", [-1.0] * 3, path=[0, 2, 2])
    with pytest.raises(ValueError, match="tokens has 2 entries for 3 log-probabilities"):
        make_trace("a", "random", [-1.0] * 3, tokens=[5, 6])


def test_rows_may_lack_columns_and_no_rows_make_an_empty_table():
    table = make_table(
        "outputs", [{"sample_id": "a", "order": "x"}, {"sample_id": "b", "order": "x", "text": "t"}]
    )
    assert table["text"].to_pylist() == [None, "t"]
    assert sort_rows(make_table("outputs", []), "outputs").num_rows == 0
