"""Reveal orders: rules that say which masked position of the current block is revealed next."""

from orderlens.orders.catalogue import parse_order, parse_orders
from orderlens.orders.protocol import ConfidenceOrder, DrawingOrder, OracleOrder, Order, StaticOrder

__all__ = [
    "ConfidenceOrder",
    "DrawingOrder",
    "OracleOrder",
    "Order",
    "StaticOrder",
    "parse_order",
    "parse_orders",
]
