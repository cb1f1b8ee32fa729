"""A third party's installed package adds an order and a model; both work from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PLUGIN = """
import numpy as np
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.rules.orders import StaticOrder


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


def install(folder, name, code, entry_points):
    """Put a package where Python finds it, as pip would."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")


def test_a_broken_package_is_named_and_the_rest_is_listed(tmp_path):
    install(tmp_path, "plugged", PLUGIN, ENTRY_POINTS)
    install(
        tmp_path,
        "shattered",
        "raise RuntimeError('no licence found')",
        "[orderlens.orders]\nodd = shattered:Odd\nrandom = shattered:Random\n",
    )
    listed = orderlens(tmp_path, "orders", "--json")
    assert listed.returncode == 0, listed.stderr
    kinds = {row["id"]: row["kind"] for row in json.loads(listed.stdout)}
    assert (kinds["middle-out"], kinds["odd"], kinds["random"]) == ("static", "broken", "static")
    assert "order 'random' is built in; the one of package shattered 0.1 is ignored" in listed.stderr
    used = orderlens(tmp_path, "score", "--model", "hmm", "--orders", "odd", "--out", tmp_path / "run")
    assert used.returncode == 2
    assert "order 'odd' of package shattered 0.1 cannot be loaded (RuntimeError: no licence" in used.stderr


def test_entry_points_of_an_installed_package_are_used(tmp_path):
    install(tmp_path, "plugged", PLUGIN, ENTRY_POINTS)
    (tmp_path / "text.txt").write_text(
        "some plain words to score, long enough for a few blocks", encoding="utf-8"
    )
    listed = orderlens(tmp_path, "orders", "--json")
    assert "middle-out" in [row["id"] for row in json.loads(listed.stdout)]
    orders, data = (
        ["--orders", "middle-out,forced-ar"],
        ["--data", tmp_path / "text.txt", "--prefix-tokens", "8", "--target-tokens", "40"],
    )
    done = orderlens(
        tmp_path, "score", "--model", "chain:2", *orders, *data, "--out", tmp_path / "run", "--json"
    )
    assert done.returncode == 0, done.stderr
    means = {row["order"]: row["mean"] for row in json.loads(done.stdout)["orders"]}
    assert abs(means["middle-out"] - means["forced-ar"]) < 1e-9
