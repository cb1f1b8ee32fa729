"""Parses policy specs, ``ORDER[:ARG][+COMMIT[=VALUE[:VALUE]…]][+REVISE[=…]][+SEARCH[=…]]``, with plug-ins.

A preset is a published sampler with a name, its source and our reading of it (``rules/presets.toml``). It
replaces a complete policy: ``fast-dllm`` is ``max-prob+threshold=0.9``. Traces contain the spec, not the
preset's name, so that two names of one rule count as one sampler. A preset whose order has a seed accepts
one: ``maskgit:3``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from orderlens.errors import UnknownNameError, UserInputError
from orderlens.registry import Registry, must_be, suggest
from orderlens.rules.commit.schedules import Top
from orderlens.rules.commit.spread import Spaced
from orderlens.rules.orders import Order
from orderlens.rules.policy import Policy
from orderlens.rules.protocol import MAX_SEED_DIGITS, Commit, Rule
from orderlens.rules.revise import Revise
from orderlens.rules.search import Search


@dataclass(frozen=True, slots=True)
class Preset:
    """A published sampler.

    Attributes:
        spec: its policy.
        source: paper, repository and file that define it.
        reading: the rule as we understand it, with the published defaults.
        differs: known differences from the source, and why; empty if there are none.
    """

    spec: str
    source: str
    reading: str
    differs: str = ""

    @property
    def summary(self) -> str:
        """One line for listings."""
        return f"{self.spec} ({self.source.partition(';')[0]})"

    def seeded(self, name: str, argument: str, draws: bool) -> str:
        """Return the spec with the seed that follows the preset's name, if any.

        Args:
            name: name of the preset.
            argument: the text after the colon.
            draws: whether its order takes a seed.
        """
        if not argument:
            return self.spec
        if not draws or not argument.isascii() or not argument.isdigit():
            what = (
                f"only a seed may follow, e.g. {name}:3"
                if draws
                else f"'{name}' is not random and takes no seed"
            )
            raise UserInputError(
                f"preset '{name}:{argument}': {what}; write '{name}', or '{self.spec}' with other values"
            )
        order, plus, rules = self.spec.partition("+")
        return f"{order}:{argument}{plus}{rules}"


def _no_preset(value: object) -> str | None:
    return None if isinstance(value, Preset) else "it is not a Preset"


_DATA = resources.files("orderlens.rules").joinpath("presets.toml").read_text("utf-8")

PRESETS: Registry[Preset] = Registry(
    "preset",
    {name: Preset(**entry) for name, entry in tomllib.loads(_DATA).items()},
    entry_point_group="orderlens.presets",
    check=_no_preset,
)


ORDERS: Registry[type[Order]] = Registry(
    "order",
    {
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
        "seed-first": "orderlens.rules.orders.published:SeedFirst",
        "lookahead-gain": "orderlens.rules.orders.lookahead:LookaheadGain",
        "lookahead-entropy": "orderlens.rules.orders.lookahead:LookaheadEntropy",
        "lookahead-ll": "orderlens.rules.orders.lookahead:LookaheadLikelihood",
        "lookahead-min": "orderlens.rules.orders.lookahead:LookaheadMin",
        "lookahead-var": "orderlens.rules.orders.lookahead:LookaheadVar",
        "lookahead-recover": "orderlens.rules.orders.lookahead:LookaheadRecover",
        "defer": "orderlens.rules.orders.levels:Defer",
        "even": "orderlens.rules.orders.levels:Even",
        "level": "orderlens.rules.orders.levels:Level",
        "first-hard": "orderlens.rules.orders.levels:FirstHard",
        "learned": "orderlens.rules.orders.learned:Learned",
        "oracle-max-q": "orderlens.rules.orders.basic:OracleMaxQ",
        "oracle-margin": "orderlens.rules.orders.basic:OracleMargin",
        "oracle-min-q": "orderlens.rules.orders.basic:OracleMinQ",
    },
    entry_point_group="orderlens.orders",
    check=must_be(Order),
)
COMMITS: Registry[type[Commit]] = Registry(
    "commit rule",
    {
        "top": "orderlens.rules.commit.schedules:Top",
        "steps": "orderlens.rules.commit.schedules:Steps",
        "cosine": "orderlens.rules.commit.schedules:Cosine",
        "power": "orderlens.rules.commit.schedules:Power",
        "dream": "orderlens.rules.commit.schedules:Timesteps",
        "ancestral": "orderlens.rules.commit.schedules:Ancestral",
        "schedule": "orderlens.rules.commit.schedules:LearntSchedule",
        "threshold": "orderlens.rules.commit.thresholds:Threshold",
        "above": "orderlens.rules.commit.thresholds:Above",
        "near": "orderlens.rules.commit.thresholds:Near",
        "credit": "orderlens.rules.commit.thresholds:Credit",
        "unanimous": "orderlens.rules.commit.thresholds:Unanimous",
        "factor": "orderlens.rules.commit.thresholds:Factor",
        "bound": "orderlens.rules.commit.thresholds:Bound",
        "klass": "orderlens.rules.commit.thresholds:Klass",
        "dilated": "orderlens.rules.commit.spread:Dilated",
        "dilated-sure": "orderlens.rules.commit.spread:DilatedSure",
        "spaced": "orderlens.rules.commit.spread:Spaced",
        "hierarchy": "orderlens.rules.commit.spread:Hierarchy",
        "lookahead-sets": "orderlens.rules.commit.lookahead:LookaheadSets",
    },
    entry_point_group="orderlens.commits",
    check=must_be(Commit),
)
REVISIONS: Registry[type[Revise]] = Registry(
    "revise rule",
    {
        "edit": "orderlens.rules.revise.verify:Edit",
        "mask-predict": "orderlens.rules.revise.keep_best:MaskPredict",
        "rcr": "orderlens.rules.revise.keep_best:RunningConfidence",
        "p2": "orderlens.rules.revise.keep_best:PathPlanning",
        "remdm-cap": "orderlens.rules.revise.remdm:Cap",
        "remdm-rescale": "orderlens.rules.revise.remdm:Rescale",
        "remdm-conf": "orderlens.rules.revise.remdm:Confident",
        "remdm-loop": "orderlens.rules.revise.remdm:Loop",
        "remdm-fb": "orderlens.rules.revise.remdm:ForwardBackward",
        "refine": "orderlens.rules.revise.remdm:Refine",
        "refine-current": "orderlens.rules.revise.remdm:RefineCurrent",
        "hierarchy-remask": "orderlens.rules.revise.verify:HierarchyRemask",
        "wino": "orderlens.rules.revise.verify:Wino",
    },
    entry_point_group="orderlens.revisions",
    check=must_be(Revise),
)

SEARCHES: Registry[type[Search]] = Registry(
    "search rule",
    {
        "best": "orderlens.rules.search:Best",
        "particles": "orderlens.rules.search:Particles",
        "restart": "orderlens.rules.search:Restart",
        "beams": "orderlens.rules.search:Beams",
    },
    entry_point_group="orderlens.searches",
    check=must_be(Search),
)

PolicyLike = str | Order | Policy


def parse_policy(spec: PolicyLike) -> Policy:
    """Return the policy that ``spec`` names, e.g. ``"max-prob+threshold=0.9"``."""
    if isinstance(spec, Order | Policy):
        return Policy.of(spec)
    if not isinstance(spec, str):
        raise UserInputError(f"{spec!r} is not an order; give a text such as 'max-prob' or 'max-prob+top=2'")
    order, *rules = _written_out(spec.strip()).split("+")
    parsed = [_parse_rule(spec, rule.strip()) for rule in rules]
    commits = _narrowed([rule for rule in parsed if isinstance(rule, Commit)])
    revisions = [rule for rule in parsed if isinstance(rule, Revise)]
    searches = [rule for rule in parsed if isinstance(rule, Search)]
    if len(commits) > 1 or len(revisions) > 1 or len(searches) > 1:
        raise UserInputError(
            f"policy '{spec}' names two rules of one kind; a policy has one commit, one revise and one "
            "search rule (only 'spaced' may follow another commit rule, which it narrows)"
        )
    commit = commits[0] if commits else Top(1)
    order_found, seed = _parse_seeded(order) if commit.randomised else (parse_order(order), None)
    return Policy(
        order_found, commit, revisions[0] if revisions else None, seed, searches[0] if searches else None
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


def _parse_seeded(text: str) -> tuple[Order, int | None]:
    """Return the order of a policy with a random commit rule, and the seed if the order takes none."""
    name, _, digits = text.strip().rpartition(":")
    try:
        return parse_order(text), None
    except UserInputError:
        if not (name and digits.isascii() and digits.isdigit() and len(digits) <= MAX_SEED_DIGITS):
            raise
        order = parse_order(name)
        if order.seed is not None:
            raise
        return order, int(digits)


def _narrowed(commits: list[Commit]) -> list[Commit]:
    """Combine two commit rules into one if the second is ``spaced``."""
    if len(commits) == 2 and isinstance(commits[1], Spaced) and not isinstance(commits[0], Spaced):
        return [commits[1].over(commits[0])]
    return commits


def _written_out(spec: str) -> str:
    """Return the spec of a preset, or ``spec`` itself; an unknown name is refused."""
    head, plus, _ = spec.partition("+")
    name, _, argument = head.strip().partition(":")
    orders, presets = ORDERS.names(), PRESETS.names()
    if name in orders:
        return spec
    if name not in presets:
        _refuse_misplaced(spec, head.strip(), presets)
        near = suggest(name, [*orders, *presets]) or f" (orders: {', '.join(orders)});"
        raise UnknownNameError(f"unknown order '{name}'{near} 'orderlens orders' lists all")
    preset = PRESETS.get(name)
    if plus:
        raise UserInputError(
            f"policy '{spec}': preset '{name}' is a complete policy; to change a part, write '{preset.spec}'"
        )
    return preset.seeded(name, argument, parse_policy(preset.spec).seed is not None)


def _refuse_misplaced(spec: str, head: str, presets: list[str]) -> None:
    """Refuse a spec that begins with nothing, with a rule, or with a preset that has values."""
    name = head.partition("=")[0].partition(":")[0]
    if not name:
        raise UserInputError(f"policy '{spec}' names no order; write one first, e.g. max-prob+top=4")
    if name in presets:
        raise UserInputError(
            f"preset '{name}' takes no values; write '{PRESETS.get(name).spec}' with others, not '{head}'"
        )
    if any(name in registry.names() for registry in RULES.values()):
        order = REVISIONS.get(name).order_id if name in REVISIONS.names() else None
        raise UserInputError(
            f"'{name}' is a rule, no order; write an order before it, e.g. {order or 'max-prob'}+{head}"
        )


RULES: dict[str, Registry[Any]] = {"commit": COMMITS, "revise": REVISIONS, "search": SEARCHES}
"""Kind of rule → its registry."""


def _parse_rule(spec: str, text: str) -> Rule:
    name, equals, values = text.partition("=")
    found = next((registry for registry in RULES.values() if name in registry.names()), None)
    if found is None:
        known = [rule for registry in RULES.values() for rule in registry.names()]
        if name in ORDERS.names():
            raise UserInputError(f"policy '{spec}' names a second order, '{name}'; a policy has one")
        if (first := text.partition(":"))[0] in known:
            raise UserInputError(f"policy '{spec}': write '{first[0]}={first[2]}' instead of '{text}'")
        listed = "; ".join(f"{kind}: {', '.join(registry.names())}" for kind, registry in RULES.items())
        near = suggest(name, known) or f" ({listed});"
        raise UnknownNameError(f"policy '{spec}': unknown rule '{name}'{near} 'orderlens orders' lists all")
    rule = found.get(name).parse(values.split(":") if equals else [])
    if not isinstance(rule, Commit | Revise | Search):
        raise UserInputError(
            f"rule plug-in '{name}' returned {type(rule).__name__} instead of a commit, revise or search rule"
        )
    return rule


def parse_policies(specs: str | Order | Policy | Iterable[PolicyLike]) -> list[Policy]:
    """Return the policies of a comma-separated text or a sequence; duplicates are refused."""
    if isinstance(specs, Order | Policy):
        specs = [specs]
    if not isinstance(specs, Iterable):
        raise UserInputError(f"{specs!r} is not an order; give a text such as 'max-prob', or a list of texts")
    items = [part for part in specs.split(",") if part.strip()] if isinstance(specs, str) else list(specs)
    policies = [parse_policy(item) for item in items]
    if not policies:
        raise UserInputError(f"no order given; choose from {', '.join(ORDERS.names())}")
    seen: dict[str, PolicyLike] = {}
    for policy, item in zip(policies, items, strict=True):
        if policy.spec in seen:
            raise UserInputError(_given_twice(policy.spec, seen[policy.spec], item))
        seen[policy.spec] = item
    return policies


def _given_twice(spec: str, first: PolicyLike, second: PolicyLike) -> str:
    names = {name.strip() for name in (first, second) if isinstance(name, str)}
    if len(names) < 2:
        return f"order '{spec}' is given twice; name each order once"
    one, other = str(first).strip(), str(second).strip()
    return f"'{one}' and '{other}' both mean '{spec}'; name one of them"


def preset_names(specs: str | Order | Policy | Iterable[PolicyLike]) -> dict[str, str]:
    """Return canonical spec → preset, for the policies that were requested by the name of a preset."""
    if isinstance(specs, Order | Policy):
        return {}
    items = specs.split(",") if isinstance(specs, str) else specs
    texts = [item.strip() for item in items if isinstance(item, str) and item.strip()]
    presets = set(PRESETS.names()) - set(ORDERS.names())
    named = [text for text in texts if text.partition(":")[0] in presets]
    return {parse_policy(text).spec: text for text in named}
