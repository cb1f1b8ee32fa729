"""Cards decide how an order is listed and which tier it joins, whatever it is called."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens.rules import cards as orders
from orderlens.rules.catalogue import ORDERS
from orderlens.rules.orders import Card, OracleOrder, StaticOrder
from orderlens.rules.orders.basic import MaxProb


class Cheat(OracleOrder):
    id = "cheat"
    summary = "sees the target under an innocent name"
    card = Card("structured", 40, "d")

    def scores(self, stats):
        return stats.target_logprob


class OracleLike(StaticOrder):
    id = "oracle-like"
    summary = "left to right under the name of an oracle"

    def path(self, n_positions, sample_id, block):
        return np.arange(n_positions)


class MyMaxProb(MaxProb):
    id = "my-max-prob"
    summary = "a rule of its own"


@pytest.fixture
def plugged(monkeypatch):
    found = {"cheat": Cheat, "oracle-like": OracleLike, "my-max-prob": MyMaxProb}
    monkeypatch.setattr(ORDERS, "_objects", {**ORDERS._objects, **found})


@pytest.mark.usefixtures("plugged")
def test_the_kind_of_an_order_decides_its_tier_not_its_name():
    assert orders.is_target_aware("cheat")
    assert not orders.is_structured("cheat")
    assert orders.kind_of("oracle-like") == "deployable"
    assert orders.is_structured("oracle-like")
    assert orders.order_card("my-max-prob") == Card("structured")  # not its parent's
    assert orders.in_paper_order(["oracle-like", "cheat", "random"]) == ["random", "cheat", "oracle-like"]


def test_every_built_in_order_has_a_card_with_its_own_rank_and_marker():
    cards = [orders.card_of(ORDERS.get(name)) for name in ORDERS.names()]
    for field in ("rank", "marker"):
        assert len({getattr(card, field) for card in cards}) == len(cards)
    assert [name for name in ORDERS.names() if orders.is_structured(name)] == [
        *("forced-ar", "max-prob", "top-margin", "entropy"),
        *("gumbel-prob", "sampled-position", "position-content", "eos-damped", "seed-first"),
        *("lookahead-gain", "lookahead-entropy", "lookahead-ll", "lookahead-min", "lookahead-var"),
        *("lookahead-recover", "defer", "even", "level", "learned"),
    ]


def test_a_label_whose_code_is_not_installed_gets_a_neutral_card():
    card = orders.order_card("oracle-from-elsewhere:x=1+top=2")
    assert card == Card("unknown")
    assert orders.kind_of("oracle-from-elsewhere") == "unknown"
    assert not orders.is_deployable("oracle-from-elsewhere")


def test_labels_of_policies_resolve_to_their_order():
    assert orders.order_card("max-prob+threshold=0.9") == orders.order_card("max-prob")
    assert orders.display_name("random:3+top=4") == "random+top=4"
    for spec in ("max-prob+threshold=0.9", "max-prob:select=argmax", "lookahead-gain"):
        assert orders.display_name(spec) == spec, "figures use the name that tables and commands use"
    assert orders.is_random("random:3+top=4")


def test_lists_follow_the_ranks_and_keep_variants_beside_their_order():
    given = ["random", "max-prob:select=argmax", "zz", "max-prob+top=2", "max-prob", "forced-ar", "entropy"]
    found = orders.in_paper_order(given)
    assert found == [
        *("forced-ar", "max-prob", "max-prob+top=2", "max-prob:select=argmax"),
        "entropy",
        "random",
        "zz",
    ]


def test_labels_with_seeds():
    assert orders.label("random", 3.0, True) == "random:3"
    assert orders.label("random+top=4", 3.0, True) == "random:3+top=4"
    assert orders.label("random", math.nan, True) == "random"
    assert orders.label("random", 3.0, False) == "random"
