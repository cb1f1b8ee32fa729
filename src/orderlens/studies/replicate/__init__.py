"""The paper's C4 experiments end to end: scoring, generation, sweep, tables, figures and findings."""

import sys
from types import ModuleType
from typing import Any

from orderlens.studies.replicate.entry import replicate
from orderlens.studies.replicate.plan import PRESETS, Plan, make_plan
from orderlens.studies.replicate.run import Outcome, run_plan

__all__ = ["PRESETS", "Outcome", "Plan", "make_plan", "replicate", "run_plan"]


class _Callable(ModuleType):
    """A package that is the front door's function ``orderlens.replicate`` as well.

    Python puts an imported subpackage in the place of whatever has its name in the parent.
    """

    def __call__(self, *args: Any, **options: Any) -> Outcome:
        return replicate(*args, **options)


sys.modules[__name__].__class__ = _Callable
