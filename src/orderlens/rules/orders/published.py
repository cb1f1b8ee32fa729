"""Confidence-first orders of other papers: with noise (MaskGIT, Dream) and with weights (UNCODE, EOSER).

MaskGIT and Dream add keyed Gumbel noise to a confidence. The largest sums are then a draw without replacement
from the softmax of the confidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orderlens.errors import UserInputError, one_line
from orderlens.rules.orders import Card, ConfidenceOrder, DrawingOrder, Scores
from orderlens.rules.protocol import Arguments, label_of, numbers_digest
from orderlens.rules.stats import DrawStats, FloatArray, IntArray, PositionStats
from orderlens.rules.view import StepView

TINY = 1e-300
"""Replaces a uniform number of 0, whose Gumbel number would be −inf."""


def gumbel(uniforms: FloatArray) -> FloatArray:
    """Return standard Gumbel numbers from numbers in [0, 1)."""
    noise: FloatArray = -np.log(-np.log(np.maximum(uniforms, TINY)))
    return noise


class GumbelProb(DrawingOrder):
    """MaskGIT: log p(token) + SCALE · (1 − t/T) · Gumbel, t being this pass (from 1) of T planned ones.

    google-research/maskgit ``parallel_decode.py`` (choice_temperature 1, 12 iterations). The noise decreases
    from pass to pass and is 0 in the last one. T is the commit rule's planned number of passes. The public
    code masks again only positions that it just sampled, so revealed tokens stay. At temperature > 0 drawn
    tokens are compared, else the most probable ones.
    """

    id = "gumbel-prob"
    summary = "MaskGIT: log p plus decreasing noise; gumbel-prob:scale=1:3 has seed 3"
    card = Card("structured", 20, "d")
    needs = frozenset({"planned_passes"})
    SCALE = 1.0

    def __init__(self, scale: float = SCALE, seed: int = 0) -> None:
        self.scale, self._seed = scale, seed

    @classmethod
    def parse(cls, argument: str) -> GumbelProb:
        given = Arguments(cls.id, argument, ["scale"], seeded=True)
        return cls(given.number("scale", cls.SCALE, 0.0), given.seed or 0)

    @property
    def label(self) -> str:
        return label_of(self.id, {"scale": (self.scale, self.SCALE)})

    @property
    def seed(self) -> int:
        return self._seed

    def scores(self, view: StepView[PositionStats]) -> Scores:
        return view.stats.top_logprob + self._noise(view)

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        return view.stats.logprob + self._noise(view)

    def _noise(self, view: StepView[Any]) -> Scores:
        done_R = (view.forward_C[view.chain_R] + 1) / view.extras["planned_passes"]
        noise: Scores = self.scale * np.maximum(1 - done_R, 0.0) * gumbel(view.uniforms_R)
        return noise


class SampledPosition(DrawingOrder):
    """Dream's position sampling: positions are drawn from softmax(confidence / TEMP), without replacement.

    Dream ``generation_utils.py`` with ``alg_temp`` > 0: the confidence is p (maskgit_plus), p(v1) − p(v2)
    (topk_margin) or −H (entropy), in probabilities and nats, not in logarithms. Dream's own default is
    ``alg_temp`` None, without draws; the default 0.1 is ours. llama.cpp's copy may draw a position twice.
    """

    id = "sampled-position"
    summary = "Dream's alg_temp: drawn from softmax(confidence/temp); sampled-position:by=entropy:temp=0.1:3"
    card = Card("structured", 21, "p")
    BY = ("prob", "margin", "entropy")
    TEMP = 0.1

    def __init__(self, by: str = "prob", temp: float = TEMP, seed: int = 0) -> None:
        self.by, self.temp, self._seed = by, temp, seed

    @classmethod
    def parse(cls, argument: str) -> SampledPosition:
        given = Arguments(cls.id, argument, ["by", "temp"], seeded=True)
        temp = given.number("temp", cls.TEMP, 1e-6)
        return cls(given.word("by", "prob", cls.BY), temp, given.seed or 0)

    @property
    def label(self) -> str:
        return label_of(self.id, {"by": (self.by, "prob"), "temp": (self.temp, self.TEMP)})

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def draws_first(self) -> bool:
        return self.by == "prob"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        stats, p_R = view.stats, np.exp(view.stats.top_logprob)
        if self.by == "prob":
            return self._noised(view, p_R)
        margin = self.by == "margin"
        return self._noised(view, p_R - np.exp(stats.second_logprob) if margin else -stats.entropy)

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        return self._noised(view, np.exp(view.stats.logprob))

    def _noised(self, view: StepView[Any], confidence_R: Scores) -> Scores:
        return confidence_R / self.temp + gumbel(view.uniforms_R)


ROUNDING = 1e-5
"""Possible difference of two float32 sums of one probability (nats)."""


class PositionContent(ConfidenceOrder):
    """UNCODE / PC-Sampler: e^(−LAMBDA i) · min(−p log f, ALPHA), i: offset in the block, f: v1's frequency.

    NEUIR/PC-Sampler and its successor NEUIR/Uncode (LAMBDA 0.25 and ALPHA 10 in the scripts, 1 and 1 in the
    function). f is the frequency of the proposed token in a corpus, 1/N for a token that is not in it. The
    frequencies come from a JSON file as the PC-Sampler writes it, ``{"num_token": N, "p_baseline_dict":
    {"id": count}}``, for the model's own vocabulary; without a file all tokens count as equally rare (−log f
    = 1), so only the offset matters. The public entropy and margin rules ignore the block; this one does not.
    At temperature > 0 positions are chosen by their most probable tokens before tokens are drawn; the public
    code uses the drawn tokens.
    """

    id = "position-content"
    summary = "UNCODE: early positions and rare tokens first; position-content:lambda=0.25:frequencies=FILE"
    card = Card("structured", 22, "<")
    LAMBDA, ALPHA = 0.25, 10.0

    def __init__(self, decay: float = LAMBDA, alpha: float = ALPHA, frequencies: str = "") -> None:
        self.decay, self.alpha, self.frequencies = decay, alpha, frequencies
        self._table = _read(frequencies) if frequencies else None

    @classmethod
    def parse(cls, argument: str) -> PositionContent:
        given = Arguments(cls.id, argument, ["lambda", "alpha", "frequencies"])
        decay, alpha = given.number("lambda", cls.LAMBDA, 0.0), given.number("alpha", cls.ALPHA, 1e-9)
        return cls(decay, alpha, given.word("frequencies", ""))

    @property
    def label(self) -> str:
        numbers = {"lambda": (self.decay, self.LAMBDA), "alpha": (self.alpha, self.ALPHA)}
        return label_of(self.id, {**numbers, "frequencies": (self.frequencies, "")})

    @property
    def files(self) -> Mapping[str, str]:
        return {} if self._table is None else {self.frequencies: numbers_digest(np.append(*self._table))}

    def scores(self, view: StepView[PositionStats]) -> Scores:
        p_R = np.exp(view.stats.top_logprob)
        content_R = np.minimum(p_R * self._rarity(view.stats.top_token), self.alpha)
        scores: Scores = np.exp(-self.decay * view.offset_R) * content_R
        return scores

    def _rarity(self, token_R: IntArray) -> Scores | float:
        """Return −log f of each token."""
        if self._table is None:
            return 1.0
        known_V, unseen = self._table
        inside_R = np.minimum(token_R, len(known_V) - 1)
        return np.where(token_R < len(known_V), known_V[inside_R], unseen)


def _read(path: str) -> tuple[Scores, float]:
    """Return −log f by token id, and the value for tokens that the file does not list."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        total = float(found["num_token"])
        counts = {int(token): float(count) for token, count in found["p_baseline_dict"].items()}
    except OSError as error:
        why = error.strerror or one_line(error)
        raise UserInputError(
            f"order 'position-content': frequencies={path}: {why}; check the path"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserInputError(
            f"order 'position-content': frequencies={path} must be a JSON object with 'num_token' and counts "
            "'p_baseline_dict'"
        ) from error
    if not counts or min(counts) < 0 or not 0 < total < np.inf or not min(counts.values()) > 0:
        raise UserInputError(f"order 'position-content': frequencies={path} has counts that are not positive")
    unseen = np.log(total)
    rarity_V = np.full(max(counts) + 1, unseen)
    rarity_V[list(counts)] = unseen - np.log(list(counts.values()))
    return rarity_V, float(unseen)


class SeedFirst(DrawingOrder):
    """Nemotron-Labs-Diffusion: the block's first position, then the most probable token first.

    ``generate`` of NVIDIA's ``modeling_nemotron_labs_diffusion.py`` with ``causal_context``: the causal pass
    that caches a block also predicts the first token of the next one. Differs: a rule that commits several
    tokens may add others to that first one.
    """

    id = "seed-first"
    summary = "Nemotron-Labs-Diffusion: the block's first position, then the most probable token first"
    card = Card("structured", 26, "1")

    def scores(self, view: StepView[PositionStats]) -> Scores:
        return np.where(view.offset_R == 0, 1.0, view.stats.top_logprob)  # above every log-probability

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        return np.where(view.offset_R == 0, 1.0, view.stats.logprob)


class EosDamped(ConfidenceOrder):
    """``max-prob`` with EOS proposals damped: p · γ, γ rising from GAMMA to 1 as the block fills.

    EOSER, EOS early rejection (arXiv 2509.23924; yjyddq/EOSER-ASS-RL ``eval/generate.py``, GAMMA = 0.4): it
    delays EOS tokens until most of the block is written. At GAMMA = 1 it is ``max-prob``. LLaDA's own option
    sets EOS confidences to −inf and has no effect at temperature > 0.

    Differs: γ grows with the filled share of the block. In the public code it grows with the step of the
    block over the steps of all blocks less one, so that it reaches 1 in a single block only. A proposal
    counts as EOS where the EOS ids together are at least as probable as the most probable token. At
    temperature > 0 the positions are chosen before tokens are drawn; the public code damps drawn EOS tokens.
    """

    id = "eos-damped"
    summary = "EOSER: most probable token first, EOS damped while the block is empty; eos-damped:gamma=0.4"
    card = Card("structured", 23, ">")
    GAMMA = 0.4

    def __init__(self, gamma: float = GAMMA) -> None:
        self.gamma = gamma

    @classmethod
    def parse(cls, argument: str) -> EosDamped:
        return cls(Arguments(cls.id, argument, ["gamma"]).number("gamma", cls.GAMMA, 1e-9, 1.0))

    @property
    def label(self) -> str:
        return label_of(self.id, {"gamma": (self.gamma, self.GAMMA)})

    def scores(self, view: StepView[PositionStats]) -> Scores:
        filled_C = view.step_in_block_C / view.filling_C
        damping_C = np.log(self.gamma + (1 - self.gamma) * filled_C)
        is_eos_R = view.stats.eos_logprob >= view.stats.top_logprob - ROUNDING
        return view.stats.top_logprob + np.where(is_eos_R, damping_C[view.chain_R], 0.0)
