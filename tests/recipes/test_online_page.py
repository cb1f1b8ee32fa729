"""The online study: its groups are policies with new names, and its table of draws is pass@k."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from orderlens.rules import parse_policies

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "recipes")
    import online
    import online_page

    return online, online_page


def test_every_group_can_be_decoded(recipes):
    online, _ = recipes
    groups = online.test_groups()
    for group in groups.values():
        for policy in parse_policies(group["orders"]):
            policy.refuse_equal_paths(group["temperature"])
            policy.refuse_to_generate()
    assert set(online.added_groups()) <= set(groups)


def test_draws_are_compared_item_by_item(recipes):
    """Item x: left to right has one correct text of eight, max-prob four; item y: all and none."""
    _, page = recipes
    right = {("forced-ar", "x"): 1, ("forced-ar", "y"): 8, ("max-prob", "x"): 4, ("max-prob", "y"): 0}
    rows = [
        {
            "task": "arith", "rule": f"{order} (T = 0.7)", "sample_id": item, "sample_seed": seed,
            "correct": seed < count, "extracted": "5" if seed < count else None,
        }
        for (order, item), count in right.items()
        for seed in range(8)
    ]  # fmt: skip
    table = page.compare_draws(pd.DataFrame(rows)).set_index("texts")
    left = table.loc["forced-ar (T = 0.7)"]
    assert (left["pass@1"], left["pass@2"], left["pass@8"]) == ("56.2", "62.5", "100.0")
    assert left["majority@8"] == "50.0"
    assert table.loc["max-prob (T = 0.7)", "majority@8"] == "25.0"
    assert table.loc["difference", "pass@8"].startswith("-50.0 [")
    lines = page.draw_lines(table.reset_index())
    assert lines[2].startswith("| 0.7 | `arith` | left to right | 56.2 | 62.5 | 75.0 | 100.0 | 50.0 |")
    assert lines[4].startswith("| 0.7 | `arith` | max-prob − left to right | −31.2 [")
    assert page.draw_lines(page.compare_draws(pd.DataFrame(rows[:-1])))[3:] == []
    assert page.draw_lines(pd.DataFrame()) == ["These draws have not been made yet."]


def test_the_page_has_a_place_for_every_table(recipes, tmp_path):
    _, page = recipes
    copy = tmp_path / "online.md"
    copy.write_text((ROOT / "docs" / "results" / "online.md").read_text("utf-8"), "utf-8")
    for name in ("rules", "selection", "draws"):
        page.fill(copy, name, [f"table {name}"])
    assert all(f"table {name}" in copy.read_text("utf-8") for name in ("rules", "selection", "draws"))
