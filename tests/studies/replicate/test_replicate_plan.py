"""Presets, sizes and what a resumed replication must match."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orderlens.analysis import paper
from orderlens.errors import RunError, UnknownNameError, UserInputError
from orderlens.rules import parse_policies
from orderlens.studies import replicate_plan as plans
from orderlens.studies.plan import Stored, read_plan, resumed_plan
from orderlens.studies.replicate_plan import PRESETS, ReplicatePlan, make_plan


def test_full_is_the_papers_protocol():
    plan = make_plan("full", "tiny", "c4")
    assert (plan.n_texts, plan.prefix_tokens, plan.target_tokens, plan.block_size) == (1000, 32, 128, 32)
    assert plan.temperatures == (0.3, 0.5, 0.7, 1.0, 1.3, 1.5, 2.0)
    assert plan.generate_orders == ("forced-ar", "max-prob", "top-margin", "random")
    assert "max-prob:select=argmax" in plan.sweep_orders
    assert sum(order.startswith("random:") for order in plan.score_orders) == 8
    assert {"oracle-max-q", "oracle-margin", "oracle-min-q"} <= set(plan.score_orders)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_order_of_every_preset_exists(preset):
    plan = make_plan(preset, "tiny", "c4")
    for orders in (plan.score_orders, plan.generate_orders, plan.sweep_orders, plan.measured_orders):
        assert len(parse_policies(orders)) == len(orders)


def test_quick_takes_a_hundred_and_changes_win_unless_none():
    assert make_plan("quick", "tiny", "c4").n_texts == 100
    assert make_plan("quick", "tiny", "c4", n_texts=7, seed=None).n_texts == 7


def test_stages_count_every_revealed_token():
    plan = make_plan("full", "tiny", "c4")
    counts = [plan.tokens_of(stage) / 128_000 for stage in ("score", "measure", "generate", "sweep")]
    assert counts == [15, 0, 4, 35]


def test_the_demo_answers_its_questions_twice_and_a_plan_without_temperatures_sweeps_nothing():
    folders = [part.folder for part in make_plan("demo", "tiny", temperatures=()).parts()]
    assert folders == ["questions", "parallel", "score", "measure", "generate"]


@pytest.mark.parametrize(
    "change",
    [
        {"target_tokens": 0},
        {"batch_size": -1},
        {"temperatures": (0.0, 1.0)},
        {"temperatures": (1e-9,)},
        {"split": "words"},
    ],
)
def test_impossible_plans_are_refused(change):
    with pytest.raises(UserInputError):
        make_plan("quick", "tiny", "c4", **change)


def test_an_unknown_preset_is_named():
    with pytest.raises(UnknownNameError, match=r"unknown preset 'fast' \(known: demo, quick, full"):
        make_plan("fast", "tiny", "c4")


def test_a_plan_comes_back_as_it_was_saved(tmp_path):
    plan = make_plan("quick", "tiny", "c4")
    stored = Stored(plan, {"source": "c4"}, {"digest": "1"})
    stored.save(tmp_path)
    assert resumed_plan(tmp_path, plan) == stored
    assert json.loads((tmp_path / "plan.json").read_text())["data"] == {"source": "c4"}


def test_a_new_folder_has_no_plan(tmp_path):
    assert resumed_plan(tmp_path / "new", make_plan("quick", "tiny", "c4")) is None


def test_another_plan_is_refused_by_the_name_of_what_differs(tmp_path):
    plan = make_plan("quick", "tiny", "c4")
    Stored(plan, {}, {}).save(tmp_path)
    with pytest.raises(RunError, match=r"another seed \(0, now 3\)"):
        resumed_plan(tmp_path, replace(plan, seed=3))


def test_the_evaluator_may_change(tmp_path):
    requested = make_plan("demo", "tiny", "passages")
    Stored(requested, {}, {}).save(tmp_path)
    kept = resumed_plan(tmp_path, replace(requested, evaluator="other"))
    assert kept.plan.evaluator == "other"


def test_where_the_work_is_done_may_change(tmp_path):
    """The folder of the data file and the batch size are not part of what is computed."""
    plan = make_plan("quick", "tiny", "/there/texts.jsonl", batch_size=256)
    Stored(plan, {}, {}).save(tmp_path)
    kept = resumed_plan(tmp_path, replace(plan, data="here/texts.jsonl", batch_size=0))
    assert kept.plan == plan
    with pytest.raises(RunError, match="another data"):
        resumed_plan(tmp_path, replace(plan, data="here/other.jsonl"))


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", "7", '{"plan": []}', '{"plan": {"n_texts": "x"}}', "[" * 100_000]
)
def test_a_damaged_plan_is_named(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunError, match="damaged"):
        resumed_plan(tmp_path, make_plan("quick", "tiny", "c4"))


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="not empty and holds no replication"):
        resumed_plan(tmp_path, make_plan("quick", "tiny", "c4"))
    with pytest.raises(RunError, match="is a file"):
        resumed_plan(tmp_path / "thesis.tex", make_plan("quick", "tiny", "c4"))


def test_the_demo_uses_the_control_where_the_bundled_model_is_missing(monkeypatch):
    monkeypatch.setattr(plans, "is_bundled", lambda name: False)
    assert plans.demo_model() == "hmm"
    monkeypatch.setattr(plans, "is_bundled", lambda name: True)
    assert plans.demo_model() == "tiny"


def test_hub_models_get_the_papers_evaluator():
    assert plans.choose_evaluator("auto", "hf:org/name") == "hf:openai-community/gpt2-large"
    assert plans.choose_evaluator("auto", "tiny") == "tiny-ar"
    assert plans.choose_evaluator("mine", "tiny") == "mine"


def test_the_plan_is_the_file_by_which_a_replication_is_known():
    assert ReplicatePlan.file == paper.PLAN_FILE


def test_a_file_in_place_of_the_folder_and_sizes_below_the_least_are_refused(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(RunError, match="is a file; choose a new folder"):
        read_plan(tmp_path / "file", ReplicatePlan)
    for name, value, least in (("n_texts", 0, 1), ("questions", -1, 0), ("target_tokens", 0, 1)):
        with pytest.raises(UserInputError, match=f"{name}={value} must be at least {least}"):
            make_plan("demo", "hmm", "passages", **{name: value})
