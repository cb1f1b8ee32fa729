"""How an order presents itself: its name in print, its tier, its place in lists, and its marker.

Every order class carries a ``Card``; tables and figures ask the card and never look at an order's name. A
plug-in without a card gets one by its kind. This module knows no labels: ``orderlens.analysis.orders`` turns
the label of a trace into a card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["structured", "random", "control", "target-aware", "unknown"]
"""``structured``: deployable and meant to write well. ``random``: drawn without looking at the model.
``control``: deployable and meant to write badly. ``target-aware``: sees the target, so its sums are no
likelihoods. ``unknown``: the order's code is not installed here."""

UNRANKED = 1000
"""Rank of an order that says nothing about its place: after all that do, by name."""


@dataclass(frozen=True, slots=True)
class Card:
    """What lists and legends need to know of an order.

    Attributes:
        name: as in print, e.g. ``Forced-AR``.
        tier: see ``Tier``.
        rank: place in lists and legends, smaller first.
        marker: matplotlib marker; empty takes a spare one by name.
    """

    name: str
    tier: Tier
    rank: int = UNRANKED
    marker: str = ""
