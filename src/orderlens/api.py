"""The front door: ``score``, ``generate`` and ``evaluate`` (``replicate`` has a package).

Each turns its arguments into a job (``orderlens.runs``) and hands it to an engine. Nothing is decided here.
How and where to compute is asked for alike: ``orderlens.runs.options.Keywords`` lists and explains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from orderlens.common.arguments import as_temperatures
from orderlens.runs.job import Orders, generate_job, score_job
from orderlens.runs.options import Computing, Keywords, ModelLike, PathLike, spelled_out
from orderlens.runs.run import run_job
from orderlens.store.reader import Run
from orderlens.texts.loading import recorded
from orderlens.texts.samples import Samples, as_samples


@spelled_out
def score(
    model: ModelLike,
    samples: Samples,
    orders: Orders,
    *,
    circulation: int = 0,
    couplings: int = 0,
    noise_floor: bool = False,
    chat: bool = False,
    extend: bool = False,
    data_record: Mapping[str, Any] | None = None,
    **computing: Unpack[Keywords],
) -> Run:
    """Score fixed targets under several reveal orders.

    Args:
        model: a model, a spec such as ``"tiny"`` or ``"hmm"``, or the path of a checkpoint folder.
        samples: ``Sample``s with targets, or dicts with the fields ``id``, ``prompt`` and ``target``.
        orders: order specs, e.g. ``["forced-ar", "random:3"]``.
        circulation: adjacent pairs per sample and order whose swap is measured (table ``circulation``).
        couplings: sets committed in one pass, per sample and policy, that are revealed again one by one
            (table ``couplings``).
        noise_floor: score every path again under perturbations that should change nothing (table ``noise``).
        chat: put each prompt as a user's question in the model's chat template; the target is the answer.
        extend: add to the complete run in ``out`` the orders and samples that it lacks; all its samples must
            be given again, its orders need not. Nothing that is there is computed again.
        data_record: where the samples came from, for the run's spec; known for what ``load_samples`` gives.
        **computing: blocks, batches, device, workers, folder: see ``orderlens.runs.options.Keywords``.

    Returns:
        The run; ``run.reveals()`` and ``run.samples()`` give its tables.
    """
    options = Computing.asked(computing, data_record or recorded(samples))
    given = as_samples(samples)
    job = score_job(
        model,
        given,
        orders,
        options,
        circulation=circulation,
        couplings=couplings,
        noise_floor=noise_floor,
        chat=chat,
    )
    return run_job(job, options, extend=extend)


@spelled_out
def generate(
    model: ModelLike,
    prompts: Samples,
    orders: Orders,
    *,
    max_new_tokens: int = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int = 0,
    stop_at_eos: bool = True,
    chat: bool = False,
    extend: bool = False,
    data_record: Mapping[str, Any] | None = None,
    **computing: Unpack[Keywords],
) -> Run:
    """Decode prompts under several reveal orders or policies.

    Args:
        model: a model, a spec, or the path of a checkpoint folder.
        prompts: texts, ``Sample``s (targets are ignored) or dicts with a ``prompt``; one text is one prompt.
        orders: deployable order specs; oracles cannot generate.
        max_new_tokens: positions to decode, at most 16,384; the last block is always completed.
        temperature: 0 is greedy; several temperatures give a sweep in one run.
        seed: seed of the token draws at temperature > 0.
        stop_at_eos: end after the block in which an EOS was committed.
        chat: put each prompt as a user's question in the model's chat template.
        extend: add to the complete run in ``out`` the orders and samples that it lacks, as ``score`` does.
        data_record: where the prompts came from, for the run's spec; known for what ``load_samples`` gives.
        **computing: blocks, batches, device, workers, folder: see ``orderlens.runs.options.Keywords``.

    Returns:
        The run; ``run.outputs()`` holds the texts.
    """
    options = Computing.asked(computing, data_record or recorded(prompts))
    job = generate_job(
        model,
        as_samples(prompts, "prompts"),
        orders,
        options,
        max_new_tokens=max_new_tokens,
        temperatures=as_temperatures(temperature),
        seed=seed,
        stop_at_eos=stop_at_eos,
        chat=chat,
    )
    return run_job(job, options, extend=extend)


@spelled_out
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
    **computing: Unpack[Keywords],
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
        **computing: blocks, batches, device, workers, folder: see ``orderlens.runs.options.Keywords``.

    Returns:
        The run; ``run.table("verdicts")`` holds the verdicts, with ``correct`` null for responses whose
        grader's packages are missing here (``regrade`` completes them). Items whose prompt leaves no room
        for the response are not decoded; ``run.spec["data"]["tasks"]`` names them.
    """
    from orderlens.tasks.evaluation.job import evaluate_job

    options = Computing.asked(computing)
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
