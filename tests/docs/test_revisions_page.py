"""Revisions in docs/policies.md: the command and examples run, and the tables name every rule and preset."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest

from orderlens.cli.main import main
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.rules import Policy, Revise, parse_policy
from orderlens.rules.catalogue import PRESETS, REVISIONS
from orderlens.testing import StubModel
from orderlens.texts.samples import EncodedSample
from support.pages import section

PAGE = section("policies", "Revise rules")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_tables_name_every_rule_and_every_preset_that_revises():
    for name in REVISIONS.names():
        assert f"| `{name}" in PAGE
    for name in PRESETS.names():
        if parse_policy(name).revise is not None:
            assert f"`{name}`" in PAGE


def test_the_command_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^\$ orderlens (.*)$", PAGE, re.M)
    assert (
        main(shlex.split(command.replace("--limit 4 --max-new-tokens 32", "--limit 2 --max-new-tokens 12")))
        == 0
    )
    capsys.readouterr()


def test_the_replay_shows_a_canvas_that_fills_up(capsys):
    exec(BLOCKS[0], {})
    lines = capsys.readouterr().out.split()
    assert set(lines[-1]) <= {"o", "N"}
    assert "·" in lines[0]


@pytest.mark.filterwarnings("error")
def test_the_rule_of_the_page_decodes():
    names: dict = {}
    exec(BLOCKS[1], names)
    rule = names["Doubt"]()
    assert isinstance(rule, Revise)
    model = StubModel(np.random.default_rng(1).normal(size=(9, 5)), block_size=4)
    policy = Policy(parse_policy("max-prob").order, revise=rule)
    (done,) = generate_batch(
        model, [EncodedSample("a", np.arange(3))], [policy], GenerationSettings(9)
    ).chains
    assert done.n_passes <= sum(rule.max_passes(n) for n in (1, 4, 4))
    assert not (done.tokens == model.mask_id).any()
