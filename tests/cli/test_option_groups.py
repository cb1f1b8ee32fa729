from __future__ import annotations

import inspect

import pytest
import typer
from typer.testing import CliRunner

from orderlens.cli.option_groups import Grid, Machine, Texts, computing, spread
from orderlens.errors import UserInputError


def test_a_verb_gets_its_groups_whole_and_typer_their_options():
    seen = []

    def verb(*, name: str = "a", texts: Texts, machine: Machine) -> None:
        """Do something."""
        seen.append((name, texts, machine))

    app = typer.Typer()
    app.command()(spread(verb))
    result = CliRunner().invoke(app, ["--limit", "3", "--device", "cpu", "--batch-size", "auto"])
    assert result.exit_code == 0, result.output
    assert seen == [("a", Texts(limit=3), Machine(device="cpu"))]
    names = list(inspect.signature(spread(verb)).parameters)
    assert names[:3] == ["name", "data", "limit"]  # in the place of the group
    assert spread(verb).__doc__ == "Do something."


def test_a_wrong_value_is_refused_before_anything_is_loaded():
    with pytest.raises(UserInputError, match="engine 'rey' is unknown"):
        computing("out", Grid(), Machine(engine="rey"))
    with pytest.raises(UserInputError, match="anchor 'end' is unknown"):
        computing("out", Grid(anchor="end"), Machine())
