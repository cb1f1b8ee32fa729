"""``score --likelihood`` prints the methods side by side; on ``hmm`` they agree."""

from __future__ import annotations

import json

import pytest

from orderlens.cli.main import main


def test_methods_side_by_side(tmp_path, capsys):
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"id": "a", "text": "the cat sat on the mat and the dog ran away"}) + "\n")
    given = ["score", "--model", "hmm", "--data", str(data), "--orders", "forced-ar,random,max-prob"]
    given += ["--prefix-tokens", "4", "--target-tokens", "20", "--likelihood", "policy,elbo,mixture"]
    assert main([*given, "--draws", "200", "--out", str(tmp_path / "run"), "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["likelihood"]}
    assert list(rows) == ["policy, forced-ar", "policy, max-prob", "elbo", "mixture"]
    exact = rows["policy, forced-ar"]["log_prob"]
    assert rows["policy, max-prob"]["log_prob"] == pytest.approx(exact, abs=1e-9)
    assert rows["mixture"]["log_prob"] == pytest.approx(exact, abs=1e-9)
    assert abs(rows["elbo"]["log_prob"] - exact) < 4 * rows["elbo"]["std_error"]
    assert main([*given, "--draws", "20", "--out", str(tmp_path / "shown")]) == 0
    assert "bits/byte" in capsys.readouterr().out


def test_an_unknown_method_is_refused(tmp_path, capsys):
    assert main(["score", "--likelihood", "bound", "--out", str(tmp_path / "run")]) == 2
    assert "unknown method 'bound'" in capsys.readouterr().err
