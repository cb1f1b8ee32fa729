"""Policies: an order, a commit rule (how many positions per pass) and an optional revise rule."""

from orderlens.rules.catalogue import Preset, parse_order, parse_policies, parse_policy
from orderlens.rules.policy import Likelihood, Policy, spec_of
from orderlens.rules.protocol import Commit, Schedule
from orderlens.rules.revise import BlockView, Moves, Revise

__all__ = [
    "BlockView",
    "Commit",
    "Likelihood",
    "Moves",
    "Policy",
    "Preset",
    "Revise",
    "Schedule",
    "parse_order",
    "parse_policies",
    "parse_policy",
    "spec_of",
]
