"""External perplexity: the perplexity of generated text under a separate autoregressive model.

Generated tokens are scored given the prompt; with an empty prompt, prompt and text can be scored as one text.
The evaluator has its own tokenizer, so the ratio of the two token counts is reported. Texts must be cut at
the first EOS. This module does not depend on torch; evaluators are loaded by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from orderlens.errors import MissingPackageError, ModelOutputError, UserInputError
from orderlens.metrics.segments import FloatArray
from orderlens.registry import Registry

DEFAULT_EVALUATOR = "hf:openai-community/gpt2-large"
"""The paper's evaluator; downloaded once from the hub."""

OFFLINE_EVALUATOR = "tiny-ar"
"""The bundled evaluator, for machines without the hub."""


class CausalEvaluator(Protocol):
    """An autoregressive model that scores text."""

    @property
    def name(self) -> str:
        """The spec that loads this evaluator again."""
        ...

    def token_logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Return the natural-log probabilities of each continuation's tokens given its prompt.

        Prompt and continuation are tokenised as one text. A token across the boundary contains generated
        characters, so it counts as one token of the continuation.
        """
        ...


@runtime_checkable
class StartsScoring(Protocol):
    """An evaluator with asynchronous scoring: it can start texts before earlier ones are finished."""

    def start(
        self, pairs: Sequence[tuple[str, str]], on_progress: Callable[[int], None]
    ) -> Callable[[], list[FloatArray]]:
        """Start ``token_logprobs``; return a function that waits for the result, callable in any thread.

        ``on_progress`` receives the number of newly finished texts.
        """
        ...


class LoadEvaluator(Protocol):
    """Loads an evaluator from the text after ``name:`` (may be empty) and a device name."""

    def __call__(self, argument: str, device: str | None = None) -> CausalEvaluator:
        """Load the evaluator."""
        ...


EVALUATORS: Registry[LoadEvaluator] = Registry(
    "evaluator",
    {
        "hf": "orderlens.models.evaluators.hf:load_hf_evaluator",
        "tiny-ar": "orderlens.models.evaluators.small:load_tiny_evaluator",
        "smol-ar": "orderlens.models.smol.model:load_evaluator",
    },
    entry_point_group="orderlens.evaluators",
)


def load_evaluator(spec: str = DEFAULT_EVALUATOR, device: str | None = None) -> CausalEvaluator:
    """Load the evaluator ``spec``: ``tiny-ar``, ``smol-ar``, ``hf:ORG/NAME`` or ``hf:FOLDER``."""
    name, _, argument = spec.partition(":")
    try:
        load = EVALUATORS.get(name)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"evaluator '{name}' needs {error.name}; pip install 'orderlens[torch]'"
        ) from error
    return load(argument, device=device)


@dataclass(frozen=True, slots=True)
class ExternalScores:
    """Per-sample scores of one evaluator, in the order the texts were given.

    Attributes:
        evaluator: its name.
        nll: mean negative log-likelihood per evaluator token (nats); NaN where no token was scored.
        n_scored: evaluator tokens scored.
        n_tokens: tokens of the generating model in the same texts.
    """

    evaluator: str
    nll: FloatArray
    n_scored: FloatArray
    n_tokens: FloatArray

    @property
    def ppl(self) -> FloatArray:
        """Perplexity of each sample, exp(nll)."""
        return np.exp(self.nll)


@dataclass(frozen=True, slots=True)
class ExternalPerplexity:
    """Data-set summary of ``ExternalScores``.

    Attributes:
        evaluator: its name.
        median_ppl: median over samples of the per-sample perplexity (the paper's figure).
        exp_mean_nll: exp of the mean over samples of the per-sample mean NLL.
        pooled_ppl: exp of total NLL / total tokens; long samples have more weight.
        n_samples: samples with at least one scored token.
        n_undefined: samples without a scored token (empty text).
        n_scored: evaluator tokens scored.
        retokenization_ratio: evaluator tokens / generator tokens over the scored samples.
    """

    evaluator: str
    median_ppl: float
    exp_mean_nll: float
    pooled_ppl: float
    n_samples: int
    n_undefined: int
    n_scored: int
    retokenization_ratio: float


def score_texts(
    evaluator: CausalEvaluator, prompts: Sequence[str], texts: Sequence[str], n_tokens: Sequence[int]
) -> ExternalScores:
    """Return the per-sample scores of ``texts`` given ``prompts``.

    Args:
        evaluator: the autoregressive model.
        prompts: prompt texts; may be empty strings.
        texts: generated texts, already cut at the first EOS.
        n_tokens: number of the generating model's tokens in each text.
    """
    if not len(prompts) == len(texts) == len(n_tokens):
        raise UserInputError(
            f"{len(prompts)} prompts, {len(texts)} texts and {len(n_tokens)} lengths do not match; "
            "give one prompt and one length per text"
        )
    nll = np.full(len(texts), np.nan)
    scored = np.zeros(len(texts))
    nonempty = [place for place, text in enumerate(texts) if text]
    pairs = [(prompts[place], texts[place]) for place in nonempty]
    rows = evaluator.token_logprobs(pairs) if pairs else []
    for place, row in zip(nonempty, rows, strict=True):
        if not np.isfinite(row).all():
            raise ModelOutputError(
                f"evaluator {evaluator.name} returned a non-finite log-probability for text {place}"
            )
        if len(row):
            nll[place], scored[place] = -float(np.mean(row)), len(row)
    return ExternalScores(evaluator.name, nll, scored, np.asarray(n_tokens, np.float64))


def summarise_scores(scores: ExternalScores) -> ExternalPerplexity:
    """Return the data-set summary of per-sample scores."""
    known = np.isfinite(scores.nll)
    nll, weight = scores.nll[known], scores.n_scored[known]
    tokens = scores.n_tokens[known].sum()
    return ExternalPerplexity(
        evaluator=scores.evaluator,
        median_ppl=float(np.median(np.exp(nll))) if len(nll) else math.nan,
        exp_mean_nll=float(np.exp(nll.mean())) if len(nll) else math.nan,
        pooled_ppl=float(np.exp(nll @ weight / weight.sum())) if len(nll) else math.nan,
        n_samples=int(known.sum()),
        n_undefined=int((~known).sum()),
        n_scored=int(weight.sum()),
        retokenization_ratio=float(weight.sum() / tokens) if tokens else math.nan,
    )


def external_perplexity(
    evaluator: CausalEvaluator, prompts: Sequence[str], texts: Sequence[str], n_tokens: Sequence[int]
) -> ExternalPerplexity:
    """Return the external perplexity of generated texts; see ``score_texts`` for the arguments."""
    return summarise_scores(score_texts(evaluator, prompts, texts, n_tokens))
