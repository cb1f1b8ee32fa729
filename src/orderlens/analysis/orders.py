"""What the tables need to know of orders: paper names, which are structured, which look at the target."""

from __future__ import annotations

from collections.abc import Iterable

PAPER_NAMES = {
    "forced-ar": "Forced-AR",
    "reverse-ar": "Reverse-AR",
    "random": "Random",
    "max-prob": "Max-prob",
    "top-margin": "Top-margin",
    "entropy": "Entropy",
    "oracle-max-q": "Oracle max-q",
    "oracle-margin": "Oracle margin",
    "oracle-min-q": "Oracle min-q",
}
_UNSTRUCTURED = ("random", "reverse-ar")
_LISTED = ("forced-ar", "max-prob", "top-margin", "entropy", "random", "reverse-ar")
_RANK = {
    name: place for place, name in enumerate((*_LISTED, "oracle-max-q", "oracle-margin", "oracle-min-q"))
}


def base_name(order: str) -> str:
    """Return the order's id without options or seed."""
    return order.partition(":")[0]


def is_target_aware(order: str) -> bool:
    """Whether the order needs the target, so that its sums are no likelihoods."""
    from orderlens.orders import OracleOrder
    from orderlens.orders.catalogue import ORDERS

    name = base_name(order)
    if name.startswith("oracle-"):
        return True
    return name in ORDERS.names() and issubclass(ORDERS.get(name), OracleOrder)


def is_structured(order: str) -> bool:
    """Whether the order belongs to the paper's structured tier: deployable, neither random nor reversed."""
    return base_name(order) not in _UNSTRUCTURED and not base_name(order).startswith("oracle-")


def in_paper_order(orders: Iterable[str]) -> list[str]:
    """Return the orders as the paper lists them, others after them by name."""
    return sorted(set(orders), key=lambda name: (_RANK.get(base_name(name), len(_RANK)), name))


def label(order: str, seed: object, several_seeds: bool) -> str:
    """Return ``order`` or, when it occurs with several seeds, ``order:seed``."""
    return (
        f"{order}:{int(seed)}" if several_seeds and isinstance(seed, int | float) and seed == seed else order
    )
