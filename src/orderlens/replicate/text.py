"""A reading of the paper's findings for a terminal."""

from __future__ import annotations

from orderlens.analysis.judge import RULES, Reading


def render_text(reading: Reading) -> str:
    """Return word, claim, numbers, rule and remarks of every finding; all outcomes look alike."""
    lines = []
    for place, item in enumerate(reading.findings, 1):
        lines.append(f"{place}. {item.heading}")
        lines.append(f"   {item.sentence()}")
        lines += [f"     {line}" for line in item.lines()]
        lines.append(f"   rule: {item.rule}")
        lines += [f"   note: {remark}" for remark in item.remarks]
        lines.append("")
    return "\n".join([reading.sentence(), "", *lines, *RULES, ""])
