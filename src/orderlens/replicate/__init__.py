"""The paper's C4 experiments end to end: scoring, generation, sweep, tables, figures and verdicts."""

from orderlens.replicate.plan import PRESETS, Plan, make_plan
from orderlens.replicate.run import Outcome, replicate

__all__ = ["PRESETS", "Outcome", "Plan", "make_plan", "replicate"]
