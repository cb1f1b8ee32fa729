"""Quality of policies against their compute: decode with each, then one table, one figure and findings.

``results`` is imported by those who have runs to read: a machine that only decodes needs none of it.
"""

from orderlens.studies.frontier.plan import PARTS, Plan, with_ladder
from orderlens.studies.frontier.run import decode

__all__ = ["PARTS", "Plan", "decode", "with_ladder"]
