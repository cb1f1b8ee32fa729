"""ARDM's dynamic programme against every split, and the losses of a run against plain loops."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import orderlens as ol
from orderlens.analysis import Study, as_json
from orderlens.errors import RunError, UserInputError
from orderlens.rules import parse_policy
from orderlens.rules.commit.schedules import at_size, best_sizes
from orderlens.runs.compute import ComputeContext
from orderlens.runs.spec import RunSpec, Unit
from orderlens.texts.samples import encode_samples


def cost(losses, sizes):
    """Return Σ (t − s) L_s of a split."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return sum(size * losses[start] for start, size in zip(starts, sizes, strict=True))


def splits(n, k):
    for cuts in itertools.combinations(range(1, n), k - 1):
        yield [b - a for a, b in itertools.pairwise([0, *cuts, n])]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", range(1, 10))
def test_no_split_loses_less(seed, k):
    losses = np.random.default_rng(seed).gamma(2.0, size=8)
    if seed % 2:
        losses = np.sort(losses)[::-1]
    found = best_sizes(tuple(losses.tolist()), k)
    assert sum(found) == 8
    assert len(found) == min(k, 8)
    assert min(found) >= 1
    best = min(cost(losses, sizes) for sizes in splits(8, min(k, 8)))
    assert cost(losses, found) == pytest.approx(best, abs=1e-12)


def test_another_block_size_uses_the_same_shares():
    assert at_size((4.0, 2.0), 4) == (4.0, 3.0, 2.0, 2.0)
    assert at_size((4.0, 3.0, 2.0, 1.0), 2) == (4.0, 2.0)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """Losses of random orders on hmm, as analyze writes them, and the run."""
    model = ol.load_model("hmm")
    run = ol.score(model, ol.load_samples("passages", model, limit=4), ["random"])
    (table,) = Study(run).tables(["losses"])
    path = tmp_path_factory.mktemp("learnt") / "losses.json"
    path.write_text(json.dumps(as_json(table)))
    return run, table, path


def test_losses_are_those_of_plain_loops(learnt):
    run, table, _ = learnt
    rows = run.reveals().to_pandas().sort_values(["sample_id", "step"])
    blocks = [part["logq"].tolist() for _, part in rows[~rows["is_overflow"]].groupby(["sample_id", "block"])]
    whole = [values for values in blocks if len(values) == 32]
    assert len(table.rows) == 32
    for place in range(32):
        mean = -sum(values[place] for values in whole) / len(whole)
        assert table.cell("loss", order="random", revealed=str(place)).value == pytest.approx(mean, abs=1e-9)


def test_a_learnt_schedule_decodes_in_k_passes_and_loses_less_than_an_even_split(learnt):
    _, _, path = learnt
    model = ol.load_model("hmm")
    texts = ol.load_samples("passages", model, limit=12)[4:]
    orders = [f"random+schedule=6:{path}", "random+steps=6"]
    found = ol.score(model, texts, orders).samples().to_pandas()
    assert set(found["n_passes"] / 4) == {6.0}
    mean = found.groupby("order")["log_prob"].mean()
    assert mean[f"random+schedule=6:{path}"] > mean["random+steps=6"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random+schedule=8", "takes the number of passes and a file of losses"),
        ("random+schedule=0:x.json", "K is '0' and must be a whole number of at least 1"),
        ("random+schedule=8:missing.json", "file missing.json cannot be read .No such file or directory"),
    ],
)
def test_bad_values_are_refused(spec, message):
    with pytest.raises(UserInputError, match=message):
        parse_policy(spec)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.json"
    for text in ("[]", "{}", '{"table": "losses", "rows": []}', "no json"):
        path.write_text(text)
        with pytest.raises(UserInputError, match=r"not the JSON of the table losses|must hold one order"):
            parse_policy(f"random+schedule=4:{path}")


def test_a_file_of_two_orders_is_refused_with_their_names(tmp_path):
    rows = [{"order": name, "revealed": "0", "loss": {"value": 1.0}} for name in ("random", "forced-ar")]
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"tables": [{"table": "losses", "rows": rows}]}))
    with pytest.raises(UserInputError, match=r"holds forced-ar, random; .* from a run of one order"):
        parse_policy(f"random+schedule=4:{path}")


def test_a_run_keeps_the_losses_that_it_started_with(learnt, tmp_path):
    path, out = tmp_path / "losses.json", tmp_path / "run"
    path.write_text(Path(learnt[2]).read_text())
    texts, policy = ol.load_samples("passages", "hmm", limit=3), f"random+schedule=6:{path}+spaced"
    ol.score("hmm", texts[:2], policy, out=out)
    ol.score("hmm", texts, [policy, "forced-ar"], out=out, extend=True)
    table = json.loads(path.read_text())
    for place, row in enumerate(table["rows"]):
        row["loss"]["value"] = 1.0 + place % 5
    path.write_text(json.dumps(table))
    for more in ({}, {"extend": True}):
        with pytest.raises(RunError, match=r"the numbers in file .*losses\.json have changed"):
            ol.score("hmm", texts, [policy, "max-prob"], out=out, **more)
    spec = RunSpec.from_json(ol.open_run(out).spec)
    unit = Unit(tuple(encode_samples(ol.load_model("hmm"), texts, need_target=True)))
    with pytest.raises(RunError, match="have changed"):
        ComputeContext().orders_of(spec, unit)
