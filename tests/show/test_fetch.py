"""A sample over several runs: which traces are comparable, and the message where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orderlens.analysis.study import Study
from orderlens.errors import RunError
from orderlens.store.reader import open_run
from orderlens.testing import make_run, make_trace

OWN = {"prompt_text": "Once", "text": " upon", "temperature": None, "task": None}


@pytest.mark.parametrize(
    ("other", "beside"),
    [
        ({}, True),
        ({"text": " more"}, False),
        ({"prompt_text": "Twice"}, False),
        ({"task": "t"}, False),
        ({"prompt_text": None}, False),
        ({"temperature": 0.0, "text": "generated"}, True),
        ({"temperature": 0.0, "prompt_text": "Twice"}, False),
    ],
)
def test_runs_are_compared_where_prompt_and_target_are_the_same(
    tmp_path: Path, other: dict[str, Any], beside: bool
) -> None:
    for name, order, given in (("one", "forced-ar", OWN), ("two", "max-prob", OWN | other)):
        trace = make_trace("a", order, [-1.0], temperature=given["temperature"], task=given["task"])
        row = {"sample_id": "a", "order": order} | given
        make_run([trace], spec={"name": name}, outputs=[row]).save(tmp_path / name)
    run = open_run(tmp_path)
    assert (len(run.sample("a", run="one").traces) == 2) is beside
    assert (len(run.sample("a", run="two").traces) == 2) is beside
    if "temperature" not in other:
        assert (Study(run).samples["prompt"].nunique() == 1) is beside, "tables pair by the same content"


@pytest.mark.parametrize(("names", "said"), [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c, …")])
def test_samples_that_there_are_come_from_all_parts(tmp_path: Path, names: str, said: str) -> None:
    for name in names:
        make_run([make_trace(name, "max-prob", [-1.0])], spec={"name": name}).save(tmp_path / name)
    with pytest.raises(RunError, match=f"there are {said}$"):
        open_run(tmp_path).sample("z")
