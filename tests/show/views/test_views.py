"""What is shown of a sample: columns, worst steps, blocks, replay, first divergence, JSON values."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from orderlens.errors import RunError
from orderlens.metrics import gini, path_stats
from orderlens.show.views import canvas, first_divergence, plain_sample
from orderlens.testing import make_run, make_trace

LOGQ = np.log([0.9, 0.2, 0.6, 0.05, 0.8, 0.99])
HOSTILE = "<script>alert(1)</script>\u202e\x00\x1b[31m👩‍👩‍👧"


def run_of(*traces, **tables):
    return make_run(list(traces), **tables)


@pytest.fixture(scope="module")
def sample():
    key = {"sample_id": "a", "order": "max-prob", "temperature": 0.0}
    run = run_of(
        make_trace(
            "a", "max-prob", LOGQ, path=[2, 0, 1, 5, 4, 3], tokens=[5, 6, 7, 8, 9, 0], temperature=0.0
        ),
        make_trace("a", "forced-ar", LOGQ, tokens=[5, 6, 4, 8, 9, 0], temperature=0.0, block_size=4),
        make_trace("b", "forced-ar", LOGQ[:2], temperature=0.0),
        outputs=[key | {"text": "hey", "prompt_text": "you", "finish_reason": "eos"}],
        verdicts=[
            key | {"correct": False, "grader": "old", "generation": 0},
            key | {"correct": True, "extracted": "42", "grader": "new", "generation": 1},
        ],
        tokens=[{"token_id": 5, "piece": " five"}, {"token_id": 6, "piece": HOSTILE}],
    )
    return run.sample("a")


def test_reveals_stand_in_the_order_of_steps_with_their_numbers(sample):
    trace = sample.trace("max-prob")
    assert trace.reveals.position.tolist() == [2, 0, 1, 5, 4, 3]
    assert trace.reveals.token_id.tolist() == [7, 5, 6, 0, 9, 8]
    np.testing.assert_allclose(trace.reveals.logq, LOGQ)
    assert trace.reveals.is_eos.tolist() == [False, False, False, True, False, False]
    assert np.isnan(trace.reveals.tempered_logq).all()
    assert trace.n_passes == 6


def test_statistics_are_those_of_the_metrics(sample):
    stats = sample.trace("max-prob").stats
    expected = path_stats(LOGQ, sigmas=())
    assert (stats.mean, stats.var, stats.bottleneck_rate) == (
        expected.mean,
        expected.var,
        expected.bottleneck_rate,
    )


def test_bottlenecks_are_the_steps_below_one_half_worst_first(sample):
    worst = sample.trace("max-prob").bottlenecks()
    assert [(item.step, item.position) for item in worst] == [(3, 5), (1, 0)]
    assert worst[0].share == pytest.approx(math.log(0.05) / LOGQ.sum())
    assert len(sample.trace("max-prob").bottlenecks(top=1)) == 1


def test_blocks_have_their_curve_and_gini(sample):
    first, second = sample.trace("forced-ar").blocks
    assert (first.first, first.last, second.first, second.last) == (0, 3, 4, 5)
    assert first.gini == pytest.approx(gini(-LOGQ[:4]))
    assert (first.lorenz[0], len(first.lorenz)) == (0, 5)
    assert first.lorenz[-1] == pytest.approx(1)


def test_texts_and_the_newest_verdict_come_along(sample):
    trace = sample.trace("max-prob")
    assert (sample.prompt, trace.text, trace.finish_reason) == ("you", "hey", "eos")
    assert (trace.verdict.correct, trace.verdict.extracted) == (True, "42")
    assert sample.trace("forced-ar").verdict is None
    assert sample.piece(trace, 5) == " five"
    assert sample.piece(trace, 9) == "#9"


def test_overflow_is_shown_but_not_counted():
    trace = run_of(make_trace("a", "forced-ar", LOGQ, n_requested=4)).sample("a").traces[0]
    assert len(trace.reveals) == 6
    assert trace.stats.n == 4
    assert [item.step for item in trace.bottlenecks()] == [3, 1]


def test_a_trace_with_an_impossible_token_is_still_shown():
    trace = run_of(make_trace("a", "forced-ar", [-1.0, -np.inf])).sample("a").traces[0]
    assert math.isnan(trace.stats.mean)
    assert trace.bottlenecks()[0].step == 1
    json.dumps(plain_sample(run_of(make_trace("a", "x", [-np.inf])).sample("a")), allow_nan=False)


def test_labels_tell_traces_apart_only_by_what_differs():
    traces = [make_trace("a", "random", LOGQ, seed=seed, temperature=0.0) for seed in (0, 1)]
    view = run_of(*traces, make_trace("a", "max-prob", LOGQ, temperature=0.7)).sample("a")
    assert view.labels == ["max-prob, T = 0.7, draw 0", "random:0, T = 0", "random:1, T = 0"]
    assert view.trace("max-prob").label == "max-prob, T = 0.7, draw 0"
    assert view.trace("random:1").key.seed == 1
    with pytest.raises(RunError, match="2 traces of 'random'"):
        view.trace("random")
    with pytest.raises(RunError, match="no trace 'entropy'"):
        view.trace("entropy")


def test_sample_of_some_orders_and_refusals(tmp_path):
    run = run_of(make_trace("a", "random", LOGQ, seed=3), make_trace("a", "random", LOGQ, seed=4)).save(
        tmp_path / "run"
    )
    assert run.sample("a", orders=["random:4"]).labels == ["random"]
    with pytest.raises(RunError, match="no trace of order 'max-prob'"):
        run.sample("a", orders=["max-prob"])
    with pytest.raises(RunError, match="no sample 'zebra'"):
        run.sample("zebra")


def test_two_runs_with_different_vocabularies_keep_their_own_texts(tmp_path):
    for name, piece in (("one", "uno"), ("two", "dos")):
        traces = [make_trace("a", "forced-ar", LOGQ[:1], tokens=[5])]
        make_run(traces, tokens=[{"token_id": 5, "piece": piece}]).save(tmp_path / name)
    from orderlens.store.reader import open_run

    view = open_run(tmp_path).sample("a")
    assert view.labels == ["forced-ar, run one", "forced-ar, run two"]
    assert [view.piece(trace, 5) for trace in view.traces] == ["uno", "dos"]


REVISIONS = [
    # position 1 is revealed by pass 1 and edited by 3; position 3 filled by 1, remasked by 2, filled by 4
    {"event": "edit", "forward": 3, "position": 1, "old_token": 6, "new_token": 4, "logq": -0.1},
    {"event": "reveal", "forward": 1, "position": 3, "new_token": 9, "logq": -0.3},
    {"event": "remask", "forward": 2, "position": 3, "old_token": 9, "old_logq": -2.0},
]


@pytest.fixture(scope="module")
def revised():
    key = {"sample_id": "a", "order": "max-prob+edit=0.9", "temperature": 0.0}
    trace = make_trace(
        "a", key["order"], LOGQ[:4], path=[0, 1, 2, 3], tokens=[5, 6, 7, 8], forward=[0, 1, 1, 4],
        temperature=0.0,
    )  # fmt: skip
    return run_of(trace, revisions=[key | item for item in REVISIONS]).sample("a").traces[0]


def test_replay_knows_masked_new_earlier_edited_and_taken_back(revised):
    def states(forward):
        return [(cell.state, cell.token_id) for cell in canvas(revised, forward)]

    masked = ("masked", None)
    assert states(-1) == [masked] * 4
    assert states(0) == [("new", 5), masked, masked, masked]
    assert states(1) == [("earlier", 5), ("new", 6), ("new", 7), ("new", 9)]
    assert states(2) == [("earlier", 5), ("earlier", 6), ("earlier", 7), ("remasked", 9)]
    assert states(3) == [("earlier", 5), ("edited", 4), ("earlier", 7), masked]
    assert states(4) == [("earlier", 5), ("earlier", 4), ("earlier", 7), ("new", 8)]
    assert canvas(revised, 4)[1].edited
    assert revised.n_passes == 5


def test_first_divergence_in_time_and_in_the_text(sample, revised):
    found = first_divergence(sample.trace("max-prob"), sample.trace("forced-ar"))
    assert (found.forward, found.step, found.position) == (0, 0, 2)
    same = first_divergence(revised, revised)
    assert (same.forward, same.step, same.position) == (None, None, None)


def test_divergence_of_traces_that_begin_alike():
    view = run_of(
        make_trace("a", "forced-ar", LOGQ, temperature=0.0),
        make_trace("a", "max-prob", LOGQ, path=[0, 1, 2, 5, 3, 4], temperature=0.0),
    ).sample("a")
    found = first_divergence(*view.traces)
    assert (found.forward, found.step, found.position) == (3, 3, None)


def test_json_values_are_harmless_and_complete(sample):
    value = json.loads(json.dumps(plain_sample(sample), allow_nan=False))
    piece = value["pieces"]["memory"]["6"]
    assert piece.startswith("<script>")  # markup is the page's to escape; controls are gone already
    assert not {"\u202e", "\x00", "\x1b"} & set(piece)
    assert "👩‍👩‍👧" in piece
    trace = value["traces"][0]
    assert trace["reveals"]["position"] == list(range(6))
    assert "tempered_logq" not in trace["reveals"]
    assert trace["stats"]["mean"] == pytest.approx(LOGQ.mean(), abs=1e-6)
    assert trace["blocks"][0]["lorenz"][-1] == 1.0
    assert trace["key"]["order"] == "forced-ar"
