"""Revise rules that put another token where one stands."""

from __future__ import annotations

import numpy as np

from orderlens.errors import UserInputError
from orderlens.policies.protocol import Changes, HeldView, Revise, plain, real_number, whole_number

POST_PASSES = 16


class Edit(Revise):
    """A held token gives way to the most probable one where that is another and has p > TAU.

    The token-to-token half of LLaDA-2.1's decoding: applied in the same pass that reveals masked positions,
    and for up to POST further passes after the block is full, until a pass changes nothing.
    """

    id = "edit"
    summary = (
        "edit=TAU[:POST]: a held token gives way to one with p > TAU; POST (16) passes after the last mask"
    )

    def __init__(self, tau: float, post_passes: int = POST_PASSES) -> None:
        self.tau, self.post_passes = tau, post_passes

    @classmethod
    def parse(cls, values: list[str]) -> Edit:
        """Build from ``TAU`` and optionally ``POST``."""
        if len(values) not in (1, 2) or not values[0]:
            raise UserInputError("'edit' takes one or two values, e.g. edit=0.9 or edit=0.9:16")
        tau = real_number("edit", values[0], 0.0, 1.0)
        return cls(tau, whole_number("edit", values[1], 0) if len(values) == 2 else POST_PASSES)

    @property
    def spec(self) -> str:
        """``edit=TAU``, and ``:POST`` where it is not the default."""
        return f"edit={plain(self.tau)}" + ("" if self.post_passes == POST_PASSES else f":{self.post_passes}")

    def revise(self, view: HeldView) -> Changes:
        """Return the positions where the model now clearly prefers another token."""
        edit_R = (view.stats.top_token != view.token_R) & (np.exp(view.stats.top_logprob) > self.tau)
        return Changes(edit_R, np.zeros(len(edit_R), bool))
