"""Looks up an order's card (tier, rank, marker) by the label of a trace.

A label is an order's id with its options and, for a policy, its rules: ``random``,
``max-prob:select=argmax``, ``max-prob+threshold=0.9``. The order's class defines the card; an order that is
not installed gets a neutral card.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orderlens.errors import OrderLensError
from orderlens.rules import spec_of
from orderlens.rules.catalogue import ORDERS
from orderlens.rules.orders import UNRANKED, Card, OracleOrder, Order


def base_name(label: str) -> str:
    """Return the order's id without options, seed or commit rule."""
    return label.partition("+")[0].partition(":")[0]


def card_of(kind: type[Order]) -> Card:
    """Return the card of an order class; without one, a card with the tier of its kind.

    A subclass with another id does not inherit the card of its parent. An order that sees the target is
    always target-aware.
    """
    aware = issubclass(kind, OracleOrder)
    for parent in kind.__mro__:
        if isinstance(card := vars(parent).get("card"), Card):
            return replace(card, tier="target-aware") if aware else card
        if "id" in vars(parent):
            break
    return Card("target-aware" if aware else "structured")


def order_card(label: str) -> Card:
    """Return the card of the order in ``label``; a neutral card if it is not installed."""
    name = base_name(label)
    if name not in ORDERS.names():
        return Card("unknown")
    try:
        return card_of(ORDERS.get(name))
    except (OrderLensError, ImportError):  # a plug-in that cannot be loaded: its traces can still be read
        return Card("unknown")


def display_name(label: str) -> str:
    """Return the label without its seed, as tables and commands write it: ``random+top=4``."""
    rule, plus, rules = label.partition("+")
    name, _, option = rule.partition(":")
    return (name if option.isdigit() else rule) + plus + rules


def is_target_aware(label: str) -> bool:
    """Whether the order needs the target, so that its sums are not likelihoods."""
    return order_card(label).tier == "target-aware"


def is_deployable(label: str) -> bool:
    """Whether the order is known to work without the target."""
    return order_card(label).tier in ("structured", "random", "control")


def is_structured(label: str) -> bool:
    """Whether the order is in the paper's structured tier: deployable, not random and not a control."""
    return order_card(label).tier == "structured"


def is_random(label: str) -> bool:
    """Whether the order draws its path independently of the model."""
    return order_card(label).tier == "random"


def kind_of(label: str) -> str:
    """Return ``deployable``, ``target-aware`` or ``unknown`` (code not installed here)."""
    return "deployable" if is_deployable(label) else order_card(label).tier


def in_paper_order(labels: Iterable[str]) -> list[str]:
    """Return the labels sorted by rank (as in the paper); labels without a rank come last, by name."""
    return sorted(set(labels), key=lambda label: (min(order_card(label).rank, UNRANKED), label))


def label(order: str, seed: object, several_seeds: bool) -> str:
    """Return ``order`` or, when it occurs with several seeds, ``order:seed`` (before a commit rule)."""
    if not (several_seeds and isinstance(seed, int | float) and seed == seed):
        return order
    return spec_of(order, seed)
