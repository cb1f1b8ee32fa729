"""Revise rules that put another token where one stands."""

from __future__ import annotations

import numpy as np

from orderlens.errors import UserInputError
from orderlens.orders.arguments import plain
from orderlens.policies.presets import Preset
from orderlens.policies.protocol import Changes, HeldView, Revise, real_number, whole_number
from orderlens.stats import comparable

POST_PASSES = 16


class Edit(Revise):
    """A held token gives way to the most probable one where that is another and has p > TAU.

    The token-to-token half of LLaDA-2.1's decoding (arXiv 2602.08676, eq. 1-3; Hugging Face ``generate``, its
    port in dllm ``pipelines/llada21/sampler.py``, SGLang ``JointThreshold``). It is applied in the same pass
    that reveals masked positions, from the first pass on, to the tokens that stood before that pass; prompt
    and template tokens are never edited. Once the block is full, up to POST further passes follow, each of
    which must change something: the pass that changes nothing is made (and counted), and the block is done.
    The mask-to-token half is a commit rule, ``above=T``.

    Published values: TAU 0.9, POST 16 (dllm, with T 0.95); 0.5 with T 0.7 and 0 with T 0.5 are the quality
    and speed modes of the model card. TAU = 0 edits wherever the most probable token is another one, as in
    SGLang; one of the two diffusers schedulers reads 0 as "off".

    Differs: an edit never writes MASK (the public code does not exclude it); at T > 0 the public code
    compares a drawn token, ours the most probable one, so that an edit is never a step down; earlier blocks
    are not revisited (Multi-Block Editing), because they are cached.

    A block of n positions takes at most n + POST passes: nothing is masked again.
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
        tau = real_number("edit", values[0], 0.0, 1.0, "TAU")
        return cls(tau, whole_number("edit", values[1], 0, "POST") if len(values) == 2 else POST_PASSES)

    @property
    def spec(self) -> str:
        """``edit=TAU``, and ``:POST`` where it is not the default."""
        return f"edit={plain(self.tau)}" + ("" if self.post_passes == POST_PASSES else f":{self.post_passes}")

    def settled_after(self, n_positions: int) -> int:
        """Return 0: nothing is ever taken back."""
        return 0

    def revise(self, view: HeldView) -> Changes:
        """Return the positions where the model now clearly prefers another token."""
        sure_R = comparable(np.exp(view.stats.top_logprob)) > comparable(self.tau)
        edit_R = (view.stats.top_token != view.token_R) & sure_R
        return Changes(edit_R, np.zeros(len(edit_R), bool))


_SOURCE = "LLaDA-2.1, arXiv 2602.08676; "
_DIFFERS = (
    "An edit never writes MASK; at T > 0 the most probable token is compared, not a drawn one; finished "
    "blocks are not revisited. An EOS counts once its block has settled: one edited away ends nothing."
)
LLADA2_1 = Preset(
    "max-prob+above=0.95+edit=0.9",
    _SOURCE + "dllm pipelines/llada21/sampler.py",
    "In one pass, every masked position with p > 0.95 is filled (else the best one) and every held token "
    "whose rival has p > 0.9 is replaced; up to 16 passes follow a full block while they change something.",
    _DIFFERS,
)
QUALITY = Preset(
    "max-prob+above=0.7+edit=0.5",
    _SOURCE + "model card, quality mode; diffusers' defaults",
    "The same with thresholds 0.7 and 0.5.",
    _DIFFERS,
)
SPEED = Preset(
    "max-prob+above=0.5+edit=0",
    _SOURCE + "model card, speed mode; SGLang JointThreshold's defaults",
    "The same with thresholds 0.5 and 0: a held token always gives way to a more probable one.",
    _DIFFERS + " SGLang makes one more pass when the 16 are used up, and its penalty_lambda is not ours.",
)
