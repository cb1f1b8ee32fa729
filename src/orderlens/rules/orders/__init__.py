"""Reveal orders: rules that say which masked position of the current block is revealed next."""

from orderlens.rules.orders.protocol import (
    ConfidenceOrder,
    DrawingOrder,
    LookaheadOrder,
    OracleOrder,
    Order,
    StaticOrder,
)
from orderlens.rules.view import StepView

__all__ = [
    "ConfidenceOrder",
    "DrawingOrder",
    "LookaheadOrder",
    "OracleOrder",
    "Order",
    "StaticOrder",
    "StepView",
]
