"""Order specs: ``name`` or ``name:argument`` to order objects, plugins included."""

from __future__ import annotations

from orderlens.errors import UserInputError
from orderlens.registry import Registry, must_be
from orderlens.rules.orders.protocol import Order

_BUILTIN = {
    "forced-ar": "orderlens.rules.orders.fixed:ForcedAR",
    "reverse-ar": "orderlens.rules.orders.fixed:ReverseAR",
    "random": "orderlens.rules.orders.fixed:RandomOrder",
    "max-prob": "orderlens.rules.orders.confidence:MaxProb",
    "top-margin": "orderlens.rules.orders.confidence:TopMargin",
    "entropy": "orderlens.rules.orders.confidence:LowEntropy",
    "gumbel-prob": "orderlens.rules.orders.noised:GumbelProb",
    "sampled-position": "orderlens.rules.orders.noised:SampledPosition",
    "position-content": "orderlens.rules.orders.weighted:PositionContent",
    "eos-damped": "orderlens.rules.orders.weighted:EosDamped",
    "lookahead-gain": "orderlens.rules.orders.lookahead:LookaheadGain",
    "lookahead-entropy": "orderlens.rules.orders.lookahead:LookaheadEntropy",
    "oracle-max-q": "orderlens.rules.orders.oracle:OracleMaxQ",
    "oracle-margin": "orderlens.rules.orders.oracle:OracleMargin",
    "oracle-min-q": "orderlens.rules.orders.oracle:OracleMinQ",
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
