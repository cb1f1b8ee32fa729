"""Policies: an order, how many positions are committed at once, and what may be changed afterwards."""

from orderlens.policies.catalogue import parse_policies, parse_policy
from orderlens.policies.planners import BlockView, Moves, Planner
from orderlens.policies.policy import Likelihood, Policy, spec_of
from orderlens.policies.presets import Preset
from orderlens.policies.protocol import Changes, Commit, HeldView, Revise, Schedule

__all__ = [
    "BlockView",
    "Changes",
    "Commit",
    "HeldView",
    "Likelihood",
    "Moves",
    "Planner",
    "Policy",
    "Preset",
    "Revise",
    "Schedule",
    "parse_policies",
    "parse_policy",
    "spec_of",
]
