"""Revise rules that put another token where one stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.rules.protocol import Changes, HeldView, Revise, real, whole
from orderlens.rules.stats import comparable


@dataclass(eq=False)
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
    tau: float = real(0.0, 1.0, "TAU", 0.9)
    post_passes: int = whole(0, "POST", 16, default=16)

    def settled_after(self, n_positions: int) -> int:
        """Return 0: nothing is ever taken back."""
        return 0

    def revise(self, view: HeldView) -> Changes:
        """Return the positions where the model now clearly prefers another token."""
        sure_R = comparable(np.exp(view.stats.top_logprob)) > comparable(self.tau)
        edit_R = (view.stats.top_token != view.token_R) & sure_R
        return Changes(edit_R, np.zeros(len(edit_R), bool))
