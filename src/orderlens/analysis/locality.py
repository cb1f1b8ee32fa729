"""States of the masked positions (``--states``): entropy by distance to the revealed text, and over passes.

``metrics.locality`` defines the statistics. A trace contributes one mean per group of distances, so that long
texts do not count more, and texts are resampled. Does not depend on models.
"""

from __future__ import annotations

import pandas as pd

from orderlens.analysis.study import Study
from orderlens.analysis.table import NO_STATES, Cell, Column, Table, has_states, table
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.locality import GROUPS

QUARTERS = ("0–25 %", "25–50 %", "50–75 %", "75–100 %")
_DISTANCE = (
    Column("n", "positions"),
    Column("entropy", "entropy (nats)"),
    Column("top", "top probability"),
    Column("n_falls", "pairs"),
    Column("fall", "fall of entropy (nats)", 4),
)
_PASSES = (
    Column("n", "n"),
    *(Column(f"quarter_{place}", f"{name} revealed") for place, name in enumerate(QUARTERS)),
    Column("denoising_entropy", "denoising entropy"),
)


def shown_traces(study: Study) -> pd.DataFrame:
    """Return scored traces, or generated ones at the chosen temperature, with the statistics of states."""
    frame = study.scored if len(study.scored) else study.decoded
    return frame.join(study.states, how="inner")


@table("entropy and top probability by distance to the revealed text (--states)", suits=has_states)
def locality(study: Study) -> list[Table]:
    """Return states by distance, and the mean entropy of the masked positions over the passes."""
    if not has_states(study):
        empty = dict.fromkeys((column.name for column in _DISTANCE), Estimate.undefined(NO_STATES))
        none: dict[str, Cell] = {"order": "(none)", "distance": "–", **empty}
        return [Table("locality", NO_STATES, ("order", "distance"), _DISTANCE, (none,))]
    frame = shown_traces(study)
    distances: list[dict[str, Cell]] = []
    passes: list[dict[str, Cell]] = []
    for order in study.orders(frame):
        part = frame[frame["order"] == order]
        for d, group in enumerate(GROUPS):
            names = ("entropy", "top", "fall")
            cells = dict(zip(names, study.estimates(part, [f"{name}_{d}" for name in names]), strict=True))
            counts = {"n": int(part[f"n_entropy_{d}"].sum()), "n_falls": int(part[f"n_fall_{d}"].sum())}
            if counts["n"]:
                distances.append({"order": order, "distance": group, **counts, **cells})
        columns = [column.name for column in _PASSES[1:]]
        row = zip(columns, study.estimates(part, columns), strict=True)
        passes.append({"order": order, "n": len(part), **dict(row)})
    cut = int((frame["n_kept"] < frame["n_passes"]).sum())
    notes = [
        "distance: to the nearest token in the block or before it; for the fall, to the new token.",
        "fall: entropy before minus after a pass that reveals one token and changes no other.",
        "For tokens drawn from a coherent model the mean fall is their mutual information.",
        *([f"{cut} of {len(frame)} traces are cut at limit_states."] if cut else []),
    ]
    title = "States of the masked positions by distance to the revealed text"
    first = Table("locality", title, ("order", "distance"), _DISTANCE, tuple(distances), tuple(notes))
    notes = [
        "Mean entropy (nats) of the masked positions of a pass, by share of the block revealed before it.",
        "denoising entropy: its mean over all passes of a trace.",
    ]
    title = "Entropy of the masked positions over the passes"
    return [first, Table("locality-passes", title, ("order",), _PASSES, tuple(passes), tuple(notes))]
