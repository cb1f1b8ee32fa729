"""External perplexity: how an autoregressive model that did not write the text rates it.

Only generated tokens are scored, given the prompt. The evaluator has its own tokenizer, so its tokens are not
the generator's: the ratio of the two counts is reported. Texts are expected to be cut at the first EOS. This
file knows no torch; evaluators are loaded by name.
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
"""The paper's evaluator; needs the hub (or its cache) once."""

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

        Prompt and continuation are tokenised together. A token that straddles the boundary holds generated
        characters, so it is scored as a whole and counts as one token of the continuation.
        """
        ...


@runtime_checkable
class StartsScoring(Protocol):
    """An evaluator that can begin with texts while the numbers of others are still waited for."""

    def start(
        self, pairs: Sequence[tuple[str, str]], tell: Callable[[int], None]
    ) -> Callable[[], list[FloatArray]]:
        """Begin what ``token_logprobs`` does and return what waits for it, in whatever thread.

        ``tell`` is given the number of texts that are done, now and then.
        """
        ...


class LoadEvaluator(Protocol):
    """Turns the text after ``name:`` (may be empty) and a device name into an evaluator."""

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
    """Return the evaluator called ``spec``: ``tiny-ar``, ``smol-ar``, ``hf:ORG/NAME`` or ``hf:FOLDER``."""
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
        pooled_ppl: exp of total NLL / total tokens; long samples weigh more.
        n_samples: samples with at least one scored token.
        n_undefined: samples without (empty text).
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
        n_tokens: how many tokens of the generating model each text is.
    """
    if not len(prompts) == len(texts) == len(n_tokens):
        raise UserInputError(
            f"{len(prompts)} prompts, {len(texts)} texts and {len(n_tokens)} lengths do not match"
        )
    nll = np.full(len(texts), np.nan)
    scored = np.zeros(len(texts))
    wanted = [place for place, text in enumerate(texts) if text]
    rows = evaluator.token_logprobs([(prompts[place], texts[place]) for place in wanted]) if wanted else []
    for place, row in zip(wanted, rows, strict=True):
        if not np.isfinite(row).all():
            raise ModelOutputError(
                f"evaluator {evaluator.name} gave a non-finite log-probability for text {place}"
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
