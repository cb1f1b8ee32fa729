"""A third party's installed package adds an order and a model; both work from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PLUGIN = """
import numpy as np
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.orders import StaticOrder


class MiddleOut(StaticOrder):
    id = "middle-out"
    summary = "from the middle of the block outwards"

    def path(self, n_positions, sample_id, block):
        return np.argsort(np.abs(np.arange(n_positions) - n_positions // 2), kind="stable")


def small_chain(argument, options):
    return HiddenMarkovModel(seed=int(argument or 0), n_states=3, block_size=8)
"""
ENTRY_POINTS = (
    "[orderlens.orders]\nmiddle-out = plugged:MiddleOut\n[orderlens.models]\nchain = plugged:small_chain\n"
)


def orderlens(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-m", "orderlens", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_entry_points_of_an_installed_package_are_used(tmp_path):
    (tmp_path / "plugged.py").write_text(PLUGIN, encoding="utf-8")
    info = tmp_path / "plugged-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (tmp_path / "text.txt").write_text(
        "some plain words to score, long enough for a few blocks", encoding="utf-8"
    )
    listed = orderlens(tmp_path, "orders", "--json")
    assert "middle-out" in [row["id"] for row in json.loads(listed.stdout)]
    orders, data = (
        ["--orders", "middle-out,forced-ar"],
        ["--data", tmp_path / "text.txt", "--prefix-tokens", "8"],
    )
    done = orderlens(
        tmp_path, "score", "--model", "chain:2", *orders, *data, "--out", tmp_path / "run", "--json"
    )
    assert done.returncode == 0, done.stderr
    means = {row["order"]: row["mean"] for row in json.loads(done.stdout)["orders"]}
    assert abs(means["middle-out"] - means["forced-ar"]) < 1e-9
