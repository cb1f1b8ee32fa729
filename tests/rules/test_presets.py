"""Presets: every published name is a policy, says where it comes from, and never reaches a trace."""

from __future__ import annotations

import re

import pytest

import orderlens as ol
from orderlens.errors import UserInputError
from orderlens.rules import Preset, parse_policies, parse_policy
from orderlens.rules.catalogue import ORDERS, PRESETS


@pytest.mark.parametrize("name", PRESETS.names())
def test_it_is_a_whole_policy_and_says_where_it_comes_from(name):
    preset = PRESETS.get(name)
    assert name not in ORDERS.names(), "an order would hide it"
    assert parse_policy(name).spec == parse_policy(preset.spec).spec
    assert re.search(r"arXiv \d{4}\.\d{5}", preset.source), "a paper"
    assert preset.reading
    assert preset.summary.startswith(preset.spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast-dllm+top=2", r"is a complete policy; to change a part, write 'max-prob\+threshold=0.9'"),
        ("fast-dllm:x", "is not random and takes no seed"),
        ("maskgit:x", r"only a seed may follow, e.g. maskgit:3; .* or 'gumbel-prob\+cosine=12'"),
        ("fast-dlm", "did you mean 'fast-dllm'"),
        ("fast-dllm,max-prob+threshold=0.9", "both mean"),
        ("llada,max-prob", "both mean"),
        ("fast-dllm:3", "'fast-dllm' is not random and takes no seed; write 'fast-dllm'"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(UserInputError, match=message):
        parse_policies(text)


def test_a_seed_goes_to_the_order():
    assert parse_policy("bd3-lm:3").spec == "random:3"
    assert parse_policy(" bd3-lm ").spec == "random:0"


def test_traces_hold_the_policy_and_not_the_name():
    sample = ol.Sample("a", "ab", "cdefgh")
    run = ol.score("hmm", [sample], orders=["fast-dllm", "bd3-lm:2"])
    rows = run.samples().to_arrow().to_pylist()
    assert [(row["order"], row["seed"]) for row in rows] == [("max-prob+threshold=0.9", None), ("random", 2)]


def test_a_preset_of_a_stranger_is_checked(monkeypatch):
    monkeypatch.setitem(PRESETS._objects, "mine", Preset("max-prob+nonsense", "me", "mine"))
    with pytest.raises(UserInputError, match="unknown rule 'nonsense'"):
        parse_policy("mine")
    with pytest.raises(UserInputError, match="already registered"):
        PRESETS.add("fast-dllm", Preset("max-prob", "me", "mine"))
    assert PRESETS._check is not None
    assert PRESETS._check("max-prob") == "it is not a Preset"
