"""External scores of generated texts: by a loaded evaluator, or as stored in the runs.

Stored scores replace the evaluator where they cover every text, so that tables need no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from orderlens.metrics.external import CausalEvaluator, load_evaluator, score_texts
from orderlens.metrics.segments import FloatArray
from orderlens.store.reader import Run

Pair = tuple[str, str]


def pairs_of(prompt: str, text: str) -> list[Pair]:
    """Return the pairs under which a generated text is scored: given its prompt, and both as one text."""
    return [(prompt, text), ("", prompt + text)]


def pair_key(pair: Pair) -> str:
    """Return a digest of a prompt and its continuation."""
    state = hashlib.blake2b(digest_size=16)
    for text in pair:
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


class StoredScores:
    """An evaluator that returns stored scores of texts that were scored before.

    Any other text gets no log-probabilities, so that its perplexity is undefined.
    """

    def __init__(self, name: str, scores: Mapping[str, FloatArray]) -> None:
        self.name = name
        self._scores = scores

    @classmethod
    def of(cls, run: Run, name: str) -> StoredScores:
        """Read the scores of one evaluator from the ``external`` tables of ``run``."""
        if "external" not in run.tables:
            return cls(name, {})
        rows = run.table("external").to_arrow(["evaluator", "text_key", "logprobs"])
        mine = rows.filter(pc.equal(rows["evaluator"], name)).combine_chunks()
        ends = np.cumsum(pc.fill_null(pc.list_value_length(mine["logprobs"]), 0).to_numpy())
        values = np.split(pc.list_flatten(mine["logprobs"]).to_numpy(), ends[:-1])
        keys = mine["text_key"].to_pylist()
        return cls(
            name, dict(zip(keys, values, strict=bool(keys)))
        )  # np.split of an empty array returns one empty part

    def token_logprobs(self, pairs: Sequence[Pair]) -> list[FloatArray]:
        """Return the stored log-probabilities of each continuation's tokens; empty where there are none."""
        return [self._scores.get(pair_key(pair), np.zeros(0)) for pair in pairs]

    def knows(self, pair: Pair) -> bool:
        """Whether the text was scored."""
        return pair_key(pair) in self._scores


def stored_evaluators(run: Run) -> list[str]:
    """Return the names of the evaluators whose scores the runs hold."""
    if "external" not in run.tables:
        return []
    return sorted(set(run.table("external").to_arrow(["evaluator"])["evaluator"].to_pylist()))


def find_evaluator(
    run: Run, wanted: CausalEvaluator | str | None, device: str | None, texts: Callable[[], pd.DataFrame]
) -> CausalEvaluator | None:
    """Return the wanted evaluator, or the scores that the runs hold where they are of one evaluator.

    Args:
        run: the runs.
        wanted: an evaluator or its name; stored scores of that name are used if they cover all ``texts``.
        device: where a named evaluator runs.
        texts: returns the generated texts, as in ``external_scores``.
    """
    stored = stored_evaluators(run)
    if wanted is None:
        return StoredScores.of(run, stored[0]) if len(stored) == 1 else None
    if not isinstance(wanted, str):
        return wanted
    if wanted in stored:
        scores, found = StoredScores.of(run, wanted), texts()
        pairs = found[found["text"] != ""][["prompt_text", "text"]]
        if all(scores.knows(both) for row in pairs.itertuples(index=False) for both in pairs_of(*row)):
            return scores
    return load_evaluator(wanted, device)


def why_no_evaluator(run: Run) -> str:
    """Return why there is no external perplexity."""
    several = stored_evaluators(run)
    if len(several) < 2:
        return "no evaluator: add --evaluator hf:openai-community/gpt2-large or tiny-ar"
    return f"scores of {' and '.join(several)} are stored: choose one with --evaluator"


def external_scores(evaluator: CausalEvaluator, texts: pd.DataFrame) -> pd.DataFrame:
    """Return nll, n_scored, n_tokens (of the text given its prompt) and nll_whole (of both as one text).

    Args:
        evaluator: scores the texts.
        texts: columns prompt_text, text, n_text, and ``index``, which becomes the index of the result.
    """
    prompts, own, lengths = (texts[name].tolist() for name in ("prompt_text", "text", "n_text"))
    lengths = [int(length) for length in lengths]
    scores = score_texts(evaluator, prompts, own, lengths)
    both = [prompt + text if text else "" for prompt, text in zip(prompts, own, strict=True)]
    whole = score_texts(evaluator, [""] * len(both), both, lengths)
    columns = {"nll": scores.nll, "n_scored": scores.n_scored, "n_tokens": scores.n_tokens}
    return pd.DataFrame(columns | {"nll_whole": whole.nll}, index=pd.Index(texts["index"]))
