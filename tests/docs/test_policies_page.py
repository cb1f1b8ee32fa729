"""The page on policies: its commands run, and its orders work as installed plug-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orderlens as ol
from orderlens.rules import parse_policy
from orderlens.rules.catalogue import COMMITS, ORDERS, PRESETS
from support.pages import section

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
CODE = "\n".join(
    re.findall(r"```python\n(.*?)```", section("policies", "Writing your own order"), flags=re.DOTALL)
)
BASICS = PAGE.partition("\n## Revise rules\n")[0]
COMMANDS = [line.removeprefix("$ ") for line in BASICS.splitlines() if line.startswith("$ orderlens ")]


def orderlens(*arguments, cwd, path=""):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *sys.path])}
    command = [sys.executable, "-m", "orderlens", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def test_commands_run(tmp_path):
    """One after the other, because some read what others wrote."""
    import shlex

    for command in COMMANDS:
        done = orderlens(*shlex.split(command)[1:], cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)


def test_the_orders_work_as_plug_ins(tmp_path):
    info = tmp_path / "my_package-0.1.dist-info"
    info.mkdir()
    (tmp_path / "my_package.py").write_text(CODE, encoding="utf-8")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my_package\nVersion: 0.1\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[orderlens.orders]\nsteady = my_package:Steady\nsettled = my_package:Settled\n", encoding="utf-8"
    )
    orders = "forced-ar,steady,settled,steady+top=4"
    done = orderlens(
        "score", "--model", "hmm", "--orders", orders, "--limit", "3", "--out", "run", "--json",
        cwd=tmp_path, path=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    frame = ol.open_run(tmp_path / "run").samples().to_pandas()
    total = {
        order: rows["log_prob"].to_numpy() for order, rows in frame.sort_values("sample_id").groupby("order")
    }
    assert total["steady"] == pytest.approx(total["forced-ar"], abs=1e-7), "one by one every order is exact"
    assert total["settled"] == pytest.approx(total["forced-ar"], abs=1e-7)
    assert (abs(total["steady+top=4"] - total["steady"]) > 1e-3).all(), "sets are another sampler"


def test_the_page_names_every_order_rule_and_preset():
    """With the policy that a preset is; presets that revise have a page of their own."""
    for name in [*ORDERS.names(), *COMMITS.names()]:
        assert re.search(rf"`[^`]*\b{re.escape(name)}\b[^`]*`", PAGE), name
    for name in PRESETS.names():
        if parse_policy(name).revise is None:
            (row,) = re.findall(rf"^\| .*`{re.escape(name)}`.* \| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
            assert row == PRESETS.get(name).spec
