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


def test_it_is_that_of_the_scored_grid(tmp_path, capsys):
    """With ``--anchor`` the printed likelihood is the sum that was scored."""
    given = ["score", "--model", "hmm:incoherence=0.7,block=8", "--limit", "1", "--prefix-tokens", "5"]
    given += ["--target-tokens", "20", "--orders", "max-prob", "--likelihood", "policy", "--json"]
    sums = []
    for anchor in ("zero", "prompt"):
        assert main([*given, "--anchor", anchor, "--out", str(tmp_path / anchor)]) == 0
        found = json.loads(capsys.readouterr().out)
        sums.append(found["orders"][0]["log_prob"])
        assert found["likelihood"][0]["log_prob"] == pytest.approx(sums[-1], abs=1e-9)
    assert abs(sums[0] - sums[1]) > 0.01


def test_no_order_with_a_likelihood_is_refused(tmp_path, capsys):
    given = ["score", "--model", "hmm", "--orders", "random", "--likelihood", "policy"]
    assert main([*given, "--out", str(tmp_path / "run")]) == 2
    assert "no order of --orders has an exact likelihood" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_draw_has_no_error(tmp_path, capsys):
    given = ["score", "--model", "hmm", "--limit", "1", "--target-tokens", "8", "--orders", "max-prob"]
    assert main([*given, "--likelihood", "elbo", "--draws", "1", "--out", str(tmp_path / "run")]) == 0
    assert "undefined" in capsys.readouterr().out


def test_the_seed_sets_the_masks(tmp_path, capsys):
    given = [
        "score",
        "--model",
        "hmm",
        "--limit",
        "1",
        "--target-tokens",
        "8",
        "--orders",
        "max-prob",
        "--json",
    ]
    given += ["--likelihood", "elbo", "--draws", "4", "--out", str(tmp_path / "run")]
    found = []
    for seed in ("0", "1", "1"):
        assert main([*given, "--seed", seed]) == 0
        found.append(json.loads(capsys.readouterr().out)["likelihood"][0]["log_prob"])
    assert found[0] != found[1] == found[2]
