"""Orders as text: ``name`` or ``name:argument`` to order objects and back, plug-ins included.

``Arguments`` reads what may follow an order's name: ``name=value`` options and a seed, cut at the colons
(``scale=2:3``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from orderlens.errors import UserInputError
from orderlens.registry import Registry, must_be
from orderlens.rules.orders.protocol import Order

_BUILTIN = {
    "forced-ar": "orderlens.rules.orders.basic:ForcedAR",
    "reverse-ar": "orderlens.rules.orders.basic:ReverseAR",
    "random": "orderlens.rules.orders.basic:RandomOrder",
    "max-prob": "orderlens.rules.orders.basic:MaxProb",
    "top-margin": "orderlens.rules.orders.basic:TopMargin",
    "entropy": "orderlens.rules.orders.basic:LowEntropy",
    "gumbel-prob": "orderlens.rules.orders.published:GumbelProb",
    "sampled-position": "orderlens.rules.orders.published:SampledPosition",
    "position-content": "orderlens.rules.orders.published:PositionContent",
    "eos-damped": "orderlens.rules.orders.published:EosDamped",
    "lookahead-gain": "orderlens.rules.orders.lookahead:LookaheadGain",
    "lookahead-entropy": "orderlens.rules.orders.lookahead:LookaheadEntropy",
    "oracle-max-q": "orderlens.rules.orders.basic:OracleMaxQ",
    "oracle-margin": "orderlens.rules.orders.basic:OracleMargin",
    "oracle-min-q": "orderlens.rules.orders.basic:OracleMinQ",
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


MAX_SEED_DIGITS = 18
"""A seed is stored as a 64-bit number."""


class Arguments:
    """The options and the seed behind an order's name.

    Args:
        order: the order's id, for messages.
        text: what stands behind the first colon.
        known: names of the options.
        seeded: whether a seed may be given.
    """

    def __init__(self, order: str, text: str, known: Sequence[str], *, seeded: bool = False) -> None:
        self._order, self._text = order, text
        self.seed: int | None = None
        self._found: dict[str, str] = {}
        for part in text.split(":"):
            name, equals, value = part.partition("=")
            if equals and value and name in known and name not in self._found:
                self._found[name] = value
            elif seeded and self.seed is None and part.isascii() and part.isdigit():
                self.seed = self._checked(part)
            else:
                wanted = [f"{name}=VALUE" for name in known] + (["a seed"] if seeded else [])
                raise self.refusal(f"'{part}' is not understood; allowed are {', '.join(wanted)}, once each")

    def number(self, name: str, default: float, low: float, high: float = np.inf) -> float:
        """Return an option as a finite number between ``low`` and ``high``."""
        if name not in self._found:
            return default
        try:
            value = float(self._found[name])
        except ValueError:
            value = np.nan
        if not low <= value <= high or np.isinf(value):
            wanted = f"of at least {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"
            raise self.refusal(f"{name} must be a number {wanted}")
        return value

    def whole(self, name: str, default: int, least: int) -> int:
        """Return an option as a whole number of at least ``least``."""
        value = self.number(name, default, least, 10**6)
        if value != int(value):
            raise self.refusal(f"{name} must be a whole number")
        return int(value)

    def word(self, name: str, default: str, allowed: Sequence[str] = ()) -> str:
        """Return an option as it stands, one of ``allowed`` where that is not empty."""
        value = self._found.get(name, default)
        if allowed and value not in allowed:
            raise self.refusal(f"{name} must be {' or '.join(allowed)}")
        return value

    def refusal(self, why: str) -> UserInputError:
        """Return the error that names the order as it was written."""
        return UserInputError(f"order '{self._order}:{self._text}': {why}")

    def _checked(self, digits: str) -> int:
        if len(digits) > MAX_SEED_DIGITS:
            raise self.refusal(f"the seed must have at most {MAX_SEED_DIGITS} digits")
        return int(digits)


def label_of(order: str, options: Mapping[str, tuple[float | str, float | str]]) -> str:
    """Return the order's label: its id and every option (value, default) that is not the default."""
    parts = [
        f"{name}={value if isinstance(value, str) else plain(value)}"
        for name, (value, default) in options.items()
        if value != default
    ]
    return ":".join([order, *parts])


def plain(value: float) -> str:
    """Return the shortest decimal text of a number, the same for every way of writing it."""
    return np.format_float_positional(value, trim="-")
