"""The front door: ``score``, ``generate`` and ``evaluate`` (``replicate`` has a package).

Each turns its arguments into a job (``orderlens.work``) and hands it to an engine. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orderlens.datafiles import recorded
from orderlens.engines.run import run_job
from orderlens.models.protocol import Anchor
from orderlens.store.reader import Run
from orderlens.work.engine import EngineLike, as_engine
from orderlens.work.inputs import Samples, as_samples, as_temperatures
from orderlens.work.job import Orders, generate_job, score_job
from orderlens.work.options import ModelLike, Options, PathLike, ProgressSink


def score(
    model: ModelLike,
    samples: Samples,
    orders: Orders,
    *,
    block_size: int | None = None,
    anchor: Anchor | None = None,
    batch_size: int | None = None,
    circulation: int = 0,
    couplings: int = 0,
    noise_floor: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    engine: EngineLike = None,
    workers: int | None = None,
    out: PathLike | None = None,
    extend: bool = False,
    data_record: Mapping[str, Any] | None = None,
    progress: ProgressSink | None = None,
) -> Run:
    """Score fixed targets under several reveal orders.

    Args:
        model: a model, a spec such as ``"tiny"`` or ``"hmm"``, or the path of a checkpoint folder.
        samples: ``Sample``s with targets, or dicts with the fields ``id``, ``prompt`` and ``target``.
        orders: order specs, e.g. ``["forced-ar", "random:3"]``.
        block_size: tokens per block; the model's own by default.
        anchor: ``"zero"`` or ``"prompt"``: where the block grid starts; the model's own choice by default.
        batch_size: samples per work unit; chosen for the model by default. As many of them are scored
            together as fit in memory.
        circulation: adjacent pairs per sample and order whose swap is measured (table ``circulation``).
        couplings: sets committed in one pass, per sample and policy, that are revealed again one by one
            (table ``couplings``).
        noise_floor: score every path again under perturbations that should change nothing (table ``noise``).
        device: where to put a model given as a spec.
        dtype: its precision.
        engine: who computes: ``"local"``, ``"ray"`` or an ``orderlens.Engine``.
        workers: processes or Ray actors that share the work; one per GPU by default. More than one needs
            ``out``.
        out: run folder; without it the run lives in memory.
        extend: add to the complete run in ``out`` the orders and samples that it lacks; all its samples must
            be given again, its orders need not. Nothing that is there is computed again.
        data_record: where the samples came from, for the run's spec; known for what ``load_samples`` gives.
        progress: is told the number of tokens to score and each advance.

    Returns:
        The run; ``run.reveals()`` and ``run.samples()`` give its tables.
    """
    options = Options(
        device, dtype, block_size, anchor, batch_size, out, data_record or recorded(samples), progress,
        as_engine(engine, workers),
    )  # fmt: skip
    given = as_samples(samples)
    job = score_job(
        model, given, orders, options, circulation=circulation, couplings=couplings, noise_floor=noise_floor
    )
    return run_job(job, options, extend=extend)


def generate(
    model: ModelLike,
    prompts: Samples,
    orders: Orders,
    *,
    max_new_tokens: int = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int = 0,
    stop_at_eos: bool = True,
    block_size: int | None = None,
    anchor: Anchor | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    engine: EngineLike = None,
    workers: int | None = None,
    out: PathLike | None = None,
    extend: bool = False,
    data_record: Mapping[str, Any] | None = None,
    progress: ProgressSink | None = None,
) -> Run:
    """Decode prompts under several reveal orders, one token per step.

    Args:
        model: a model, a spec, or the path of a checkpoint folder.
        prompts: texts, ``Sample``s (targets are ignored) or dicts with a ``prompt``; one text is one prompt.
        orders: deployable order specs; oracles cannot generate.
        max_new_tokens: positions to decode, at most 16,384; the last block is always completed.
        temperature: 0 is greedy; several temperatures give a sweep in one run.
        seed: seed of the token draws at temperature > 0.
        stop_at_eos: end after the block in which an EOS was committed.
        block_size: tokens per block; the model's own by default.
        anchor: where the block grid starts.
        batch_size: prompts per work unit; chosen for the model by default. As many of them are decoded
            together as fit in memory.
        device: where to put a model given as a spec.
        dtype: its precision.
        engine: who computes: ``"local"``, ``"ray"`` or an ``orderlens.Engine``.
        workers: processes or Ray actors that share the work; one per GPU by default. More than one needs
            ``out``.
        out: run folder; without it the run lives in memory.
        extend: add to the complete run in ``out`` the orders and samples that it lacks; all its samples must
            be given again, its orders need not. Nothing that is there is computed again.
        data_record: where the prompts came from, for the run's spec.
        progress: is told the number of tokens to decode and each advance.

    Returns:
        The run; ``run.outputs()`` holds the texts.
    """
    options = Options(
        device, dtype, block_size, anchor, batch_size, out, data_record or recorded(prompts), progress,
        as_engine(engine, workers),
    )  # fmt: skip
    job = generate_job(
        model,
        as_samples(prompts, "prompts"),
        orders,
        options,
        max_new_tokens=max_new_tokens,
        temperatures=as_temperatures(temperature),
        seed=seed,
        stop_at_eos=stop_at_eos,
    )
    return run_job(job, options, extend=extend)


def evaluate(
    model: ModelLike,
    tasks: str | Sequence[str],
    orders: Orders,
    *,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    sources: Mapping[str, PathLike] | None = None,
    graders: Mapping[str, str] | None = None,
    chat: bool = True,
    block_size: int | None = None,
    anchor: Anchor | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    engine: EngineLike = None,
    workers: int | None = None,
    out: PathLike | None = None,
    progress: ProgressSink | None = None,
) -> Run:
    """Decode and grade tasks under several reveal orders.

    Args:
        model: a model, a spec, or the path of a checkpoint folder.
        tasks: task ids, as a list or separated by commas.
        orders: deployable order specs.
        limit: at most so many items per task, from the start of its file.
        max_new_tokens: response length; by default the longest that one of the tasks asks for (the paper's
            16,384 only when given here).
        temperature: 0 is greedy.
        seed: seed of the token draws at temperature > 0.
        sources: local file per task; the hub (or the generator) otherwise.
        graders: rule per task; the task's default otherwise, which for HellaSwag is ``likelihood-token``.
        chat: use the model's chat template where it has one.
        block_size: tokens per block; the model's own by default.
        anchor: where the block grid starts.
        batch_size: prompts per work unit; chosen for the model by default.
        device: where to put a model given as a spec.
        dtype: its precision.
        engine: who computes: ``"local"``, ``"ray"`` or an ``orderlens.Engine``.
        workers: processes or Ray actors that share the work; one per GPU by default. More than one needs
            ``out``.
        out: run folder; without it the run lives in memory.
        progress: is told the number of tokens to decode and each advance.

    Returns:
        The run; ``run.table("verdicts")`` holds the verdicts, with ``correct`` null for responses whose
        grader's packages are missing here (``regrade`` completes them). Items whose prompt leaves no room
        for the response are not decoded; ``run.spec["data"]["tasks"]`` names them.
    """
    from orderlens.evaluation.job import evaluate_job

    options = Options(
        device, dtype, block_size, anchor, batch_size, out, None, progress, as_engine(engine, workers)
    )
    job = evaluate_job(
        model,
        tasks,
        orders,
        options,
        limit=limit,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        sources=sources,
        graders=graders,
        chat=chat,
    )
    return run_job(job, options)
