"""Order specs: ``name`` or ``name:argument`` to order objects, plugins included."""

from __future__ import annotations

from orderlens.errors import UserInputError
from orderlens.orders.protocol import Order
from orderlens.registry import Registry, must_be

_BUILTIN = {
    "forced-ar": "orderlens.orders.fixed:ForcedAR",
    "reverse-ar": "orderlens.orders.fixed:ReverseAR",
    "random": "orderlens.orders.fixed:RandomOrder",
    "max-prob": "orderlens.orders.confidence:MaxProb",
    "top-margin": "orderlens.orders.confidence:TopMargin",
    "entropy": "orderlens.orders.confidence:LowEntropy",
    "noised-prob": "orderlens.orders.noised:NoisedProb",
    "drawn": "orderlens.orders.noised:Drawn",
    "position-content": "orderlens.orders.weighted:PositionContent",
    "eos-damped": "orderlens.orders.weighted:EosDamped",
    "ahead-gain": "orderlens.orders.lookahead:GainAhead",
    "ahead-rest": "orderlens.orders.lookahead:RestAhead",
    "oracle-max-q": "orderlens.orders.oracle:OracleMaxQ",
    "oracle-margin": "orderlens.orders.oracle:OracleMargin",
    "oracle-min-q": "orderlens.orders.oracle:OracleMinQ",
}


ORDERS: Registry[type[Order]] = Registry(
    "order", _BUILTIN, entry_point_group="orderlens.orders", check=must_be(Order)
)


def parse_order(spec: str | Order) -> Order:
    """Return the order that ``spec`` names, e.g. ``"forced-ar"`` or ``"random:3"``."""
    if isinstance(spec, Order):
        return spec
    name, colon, argument = spec.strip().partition(":")
    kind = ORDERS.get(name)
    if not colon:
        return kind()
    parse = getattr(kind, "parse", None)
    if parse is None:
        raise UserInputError(f"order '{spec}': '{name}' takes no argument; write '{name}'")
    order = parse(argument)
    if not isinstance(order, Order):
        raise UserInputError(f"order plugin '{name}' returned {type(order).__name__} instead of an Order")
    return order
