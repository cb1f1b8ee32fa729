"""Our models as an lm-eval model, so that lm-eval's own tasks run unchanged under any reveal order.

Importing this module registers the model name ``orderlens`` with lm-eval. A log-likelihood here is the sum
of log q along the chosen order's path; ``forced-ar`` gives the usual left-to-right one. Target-aware orders
do not define a distribution and are refused. With ``traces=FOLDER`` every request leaves its trace in a run
below it, and a repeated call resumes from there. Does not depend on lm-eval's tasks and metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc

from orderlens.decode.generate import MAX_NEW_TOKENS
from orderlens.decode.likelihood import log_likelihoods
from orderlens.errors import MissingPackageError, UserInputError
from orderlens.models import abilities
from orderlens.registry import refuse_unknown
from orderlens.rules import parse_policies
from orderlens.runs.job import generate_job, score_job
from orderlens.runs.options import Computing, check_anchor
from orderlens.runs.request import Opt, check
from orderlens.runs.run import run_job
from orderlens.runs.spec import DEFAULT_BATCH
from orderlens.store.reader import Run
from orderlens.tasks.protocol import cut_at_stop
from orderlens.texts.samples import Sample, encode_samples

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise MissingPackageError("the lm-eval adapter needs lm-eval: pip install 'orderlens[eval]'") from error

DEFAULT_LENGTH = 256
"""Tokens generated when a task names no limit (lm-eval's own default)."""
_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
Pair = tuple[list[int], list[int]]


@register_model("orderlens")
class OrderLensLM(LM):  # type: ignore[misc]
    """An order-agnostic model under one reveal order.

    Args of ``--model_args``:
        model: model spec (``tiny``, ``hmm``, ``hf:ORG/NAME``, a folder); ``pretrained`` is understood too.
        order: reveal order for scoring and generation, e.g. ``max-prob`` or ``random:3``.
        batch_size: requests per work unit.
        block_size: tokens per block; the model's own by default.
        anchor: where the block grid starts.
        device: where to load the model.
        dtype: its precision.
        weights: format of its weights, ``fp8`` or as stored.
        seed: seed of the token draws when a task samples.
        traces: folder for the traces; nothing is kept without it.
        likelihood: ``policy`` (the sum of log q under ``order``) or ``elbo`` (the any-order bound by Monte
            Carlo, as LLaDA's evaluation computes it; it stores no traces, and no token counts as greedy).
        draws: masks of ``elbo``.
    """

    def __init__(
        self,
        model: str = "tiny",
        order: str = "forced-ar",
        batch_size: int | str | None = None,
        block_size: int | None = None,
        anchor: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        weights: Literal["fp8"] | None = None,
        seed: int = 0,
        traces: str | None = None,
        pretrained: str | None = None,
        max_batch_size: int | None = None,
        likelihood: str = "policy",
        draws: int = 128,
    ) -> None:
        super().__init__()
        del max_batch_size  # lm-eval always passes it; batches here have a fixed size
        refuse_unknown("likelihood", likelihood, ("policy", "elbo"))
        self.likelihood, self.draws = likelihood, check("draws", int, Opt("", least=1), draws)
        self.order = parse_policies(order)
        if len(self.order) != 1 or self.order[0].needs_target:
            raise UserInputError(f"order '{order}' must be one order that needs no target")
        options = Computing(
            device=device,
            dtype=dtype,
            weights=weights,
            block_size=block_size,
            anchor=None if anchor is None else check_anchor(anchor),
        )
        self.model = options.load(pretrained or model)
        self.anchor = options.anchor_of(self.model)
        self.seed = int(seed)
        self.traces = None if traces is None else Path(traces)
        size = str(batch_size)  # lm-eval also passes None and "auto"
        self._batch = int(size) if size.isdecimal() else DEFAULT_BATCH

    @property
    def batch_size(self) -> int:
        """Requests per work unit."""
        return self._batch

    @property
    def tokenizer_name(self) -> str:
        """Name that lm-eval keys its request cache by."""
        return f"orderlens/{self.model.name}".replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the source of the model's chat template; empty if it has none or none is requested."""
        template = abilities.chat_template(self.model) if chat_template else None
        return "" if template is None else template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render messages in the model's chat template."""
        template = abilities.chat_template(self.model)
        if template is None:
            raise UserInputError(
                f"model '{self.model.name}' has no chat template; drop --apply_chat_template"
            )
        return template.render(chat_history, reply=add_generation_prompt)

    def get_model_info(self) -> dict[str, Any]:
        """Return what identifies model and order; lm-eval stores it with its results."""
        return {
            "model_name": self.model.name,
            "model_digest": self.model.digest,
            "order": self.order[0].spec,
            "block_size": self.model.block_size,
            "anchor": self.anchor,
        }

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Return (log-probability, whether every token was the argmax) per (context, continuation)."""
        pairs = [self._encode_pair(*request.args) for request in requests]
        return self._score_pairs("loglikelihood", requests, pairs)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Return the log-probability of whole texts; long ones in windows that keep half the context."""
        windows, owners, owned = [], [], []
        for index, request in enumerate(requests):
            for window in self._windows(self.model.tokenizer.encode(request.args[0])):
                windows.append(window)
                owners.append(index)
                owned.append(request)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._score_pairs("rolling", owned, windows), strict=True):
            totals[owner] += value
        return totals

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Decode each context up to its stop strings; equal lengths and temperatures share a run."""
        texts: dict[int, str] = {}
        groups: dict[tuple[int, float], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(_limits(request.args[1]), []).append(index)
        for (length, temperature), members in groups.items():
            found = self._generate([requests[index] for index in members], length, temperature)
            texts |= dict(zip(members, found, strict=True))
        return [cut_at_stop(texts[index], _stops(request.args[1])) for index, request in enumerate(requests)]

    def _encode_pair(self, context: str, continuation: str) -> Pair:
        """Tokenise together, so that the boundary falls as in running text; spaces join the continuation."""
        kept = context.rstrip()
        encode = self.model.tokenizer.encode
        if not kept:
            return [], encode(context + continuation)
        before, both = encode(kept), encode(context + continuation)
        if both[: len(before)] == before:
            return before, both[len(before) :]
        return before, encode(context[len(kept) :] + continuation)

    def _windows(self, tokens: list[int]) -> list[Pair]:
        room = self._room(0)
        if len(tokens) <= room:
            return [([], tokens)] if tokens else []
        step = room // 2
        return [
            (tokens[max(0, start - step) : start], tokens[start : start + step])
            for start in range(0, len(tokens), step)
        ]

    def _room(self, n_target: int) -> int:
        """Return how many prompt tokens fit before ``n_target`` more, whole blocks considered."""
        return self.model.max_positions - self.model.block_size - n_target

    def _score_pairs(
        self, kind: str, requests: Sequence[Any], pairs: Sequence[Pair]
    ) -> list[tuple[float, bool]]:
        names = _names(requests)
        samples = [
            Sample(
                name, prompt[max(0, len(prompt) - self._room(len(target))) :], target, task=request.task_name
            )
            for name, request, (prompt, target) in zip(names, requests, pairs, strict=True)
            if target
        ]
        found: dict[tuple[str | None, str], tuple[float, bool]] = {}
        if samples and self.likelihood == "elbo":
            found = self._bounds(samples)
        elif samples:
            options = self._options(kind, samples, f"lm-eval {kind}")
            found = _totals(run_job(score_job(self.model, samples, self.order, options), options))
        return [
            found[request.task_name, name] if target else (0.0, True)
            for name, request, (_, target) in zip(names, requests, pairs, strict=True)
        ]

    def _bounds(self, samples: Sequence[Sample]) -> dict[tuple[str | None, str], tuple[float, bool]]:
        encoded = encode_samples(self.model, samples, need_target=True)
        found = log_likelihoods(
            self.model, encoded, "elbo", self.order[0], self.draws, self.seed, self.anchor
        )
        keys = [(sample.task, sample.id) for sample in samples]
        return {key: (bound.log_prob, False) for key, bound in zip(keys, found, strict=True)}

    def _generate(self, requests: Sequence[Any], length: int, temperature: float) -> list[str]:
        names, encode = _names(requests), self.model.tokenizer.encode
        fitting = min(length, MAX_NEW_TOKENS, max(1, self._room(1)))
        samples = []
        for name, request in zip(names, requests, strict=True):
            prompt = encode(request.args[0])
            kept = prompt[max(0, len(prompt) - max(0, self._room(fitting))) :]
            samples.append(Sample(name, kept, task=request.task_name))
        options = self._options(f"generate-{fitting}", samples, "lm-eval generate")
        job = generate_job(
            self.model,
            samples,
            self.order,
            options,
            max_new_tokens=fitting,
            temperatures=(temperature,),
            seed=self.seed,
            stop_at_eos=True,
        )
        rows = run_job(job, options).outputs().to_arrow().select(["task", "sample_id", "text"]).to_pylist()
        texts = {(row["task"], row["sample_id"]): row["text"] for row in rows}
        return [texts[request.task_name, name] for name, request in zip(names, requests, strict=True)]

    def _options(self, kind: str, samples: Sequence[Sample], source: str) -> Computing:
        return Computing(
            anchor=self.anchor,
            batch_size=self._batch,
            out=self._folder(kind, samples),
            data_record={"source": source},
        )

    def _folder(self, kind: str, samples: Sequence[Sample]) -> Path | None:
        """Return the run folder of these samples: the same for the same requests, so that a rerun resumes."""
        if self.traces is None:
            return None
        state = hashlib.blake2b(digest_size=6)
        for sample in samples:
            state.update(repr((sample.task, sample.id, sample.prompt, sample.target)).encode())
        order = self.order[0].spec.replace(":", "-")
        return self.traces / f"{kind}-{order}-{state.hexdigest()}"


def _names(requests: Sequence[Any]) -> list[str]:
    """Return one id per request, different within a task: document, request, and a count for repeats."""
    seen: dict[tuple[Any, ...], int] = {}
    names = []
    for request in requests:
        key = (request.task_name, request.doc_id, request.idx)
        seen[key] = seen.get(key, 0) + 1
        suffix = "" if seen[key] == 1 else f"#{seen[key]}"
        names.append(f"{request.doc_id}.{request.idx}{suffix}")
    return names


def _totals(run: Run) -> dict[tuple[str | None, str], tuple[float, bool]]:
    table = run.reveals().to_arrow().select(["task", "sample_id", "logq", "is_argmax"])
    table = table.set_column(2, "logq", pc.cast(table["logq"], "double"))
    summed = table.group_by(["task", "sample_id"]).aggregate([("logq", "sum"), ("is_argmax", "all")])
    return {
        (row["task"], row["sample_id"]): (float(row["logq_sum"]), bool(row["is_argmax_all"]))
        for row in summed.to_pylist()
    }


def _limits(arguments: dict[str, Any]) -> tuple[int, float]:
    """Return length and temperature; without sampling the temperature is 0, as in lm-eval."""
    given = [arguments[name] for name in _LENGTH_NAMES if arguments.get(name) is not None]
    temperature = float(arguments.get("temperature") or 0.0)
    greedy = arguments.get("do_sample") is False or temperature <= 0
    return int(given[0]) if given else DEFAULT_LENGTH, 0.0 if greedy else temperature


def _stops(arguments: dict[str, Any]) -> tuple[str, ...]:
    until = arguments.get("until") or ()
    return (until,) if isinstance(until, str) else tuple(until)
