"""The Python functions ``score``, ``generate``, ``evaluate`` and ``census``; ``replicate`` is in ``studies``.

A request class defines both the command line and the Python signature of a verb. A function turns the request
into a job (``orderlens.runs``) and runs it. No postponed annotations here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from orderlens.runs.options import (
    COUPLINGS,
    MAX_NEW_TOKENS,
    OVERFLOW,
    SOURCES,
    STOP_AT_EOS,
    TASKS,
    TEMPERATURES,
    AllowShort,
    Computing,
    Decoding,
    Limit,
    ModelName,
    PathLike,
    Seed,
    Temperature,
    as_pairs,
    limit_option,
    orders_option,
    pairs,
)
from orderlens.runs.request import BadValueError, Opt, options, verb

if TYPE_CHECKING:
    from orderlens.analysis.census import Census
    from orderlens.rules import Policy
    from orderlens.rules.catalogue import PolicyLike
    from orderlens.store.reader import Run
    from orderlens.texts.samples import Samples

SCORED = "forced-ar,reverse-ar,random,oracle-max-q,oracle-margin,oracle-min-q"
COUNTED = "forced-ar,reverse-ar,random,max-prob,top-margin,entropy,oracle-max-q,oracle-margin,oracle-min-q"
DECODED = "forced-ar,max-prob,top-margin,random"
Chat = Annotated[bool, Opt("Wrap each prompt as a user message in the model's chat template.", stored=True)]
Extend = Annotated[bool, Opt("Add orders and samples to the complete run in --out.")]


@dataclass(frozen=True)
class Score(Decoding):
    """Score given texts under several reveal orders and store every step."""

    model: ModelName
    samples: Annotated[
        "Samples", "``Sample``s with targets, or dicts with ``id``, ``prompt`` and ``target``."
    ]
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", orders_option(SCORED)]
    _: KW_ONLY
    circulation: Annotated[
        int,
        Opt(
            "Number of swaps of adjacent reveals to measure per sample and order; table coherence shows it.",
            least=0,
            stored=True,
        ),
    ] = 0
    couplings: Annotated[int, COUPLINGS] = 0
    noise_floor: Annotated[
        bool, Opt("Re-score each path to measure numerical noise; table coherence shows it.", stored=True)
    ] = False
    chat: Chat = False
    extend: Extend = False

    @cached_property
    def policies(self) -> "list[Policy]":
        """The parsed orders; an order that cannot score is refused."""
        from orderlens.rules import parse_policies

        chosen = parse_policies(self.orders)
        for policy in chosen:
            policy.refuse_to_score()
        return chosen


def run_score(request: Score) -> "Run":
    """A run; ``run.reveals()`` and ``run.samples()`` return its tables."""
    from orderlens.runs.job import score_job
    from orderlens.runs.run import run_job
    from orderlens.texts.samples import as_samples

    job = score_job(
        request.model,
        as_samples(request.samples),
        request.policies,
        _recorded(request, request.samples),
        **_stored(request),
    )
    return run_job(job, request, extend=request.extend)


@dataclass(frozen=True)
class Generate(Decoding):
    """Generate texts from prompts under several reveal orders or policies."""

    model: ModelName
    prompts: Annotated["Samples", "texts, ``Sample``s or dicts with a ``prompt``; one text is one prompt."]
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", orders_option(DECODED)]
    _: KW_ONLY
    max_new_tokens: Annotated[int, MAX_NEW_TOKENS] = 128
    temperature: Annotated["float | str | Sequence[float | str]", TEMPERATURES] = 0.0
    seed: Seed = 0
    stop_at_eos: Annotated[bool, STOP_AT_EOS] = True
    overflow: Annotated[Literal["fill", "mask"], OVERFLOW] = "fill"
    chat: Chat = False
    extend: Extend = False

    @cached_property
    def policies(self) -> "list[Policy]":
        """The parsed orders; an order that needs a target is refused."""
        from orderlens.runs.job import deployable

        return deployable(self.orders)

    @cached_property
    def temperatures(self) -> list[float]:
        """The temperatures; bad temperatures and lengths are refused."""
        from orderlens.runs.job import check_generation

        return check_generation(self.max_new_tokens, self.temperature, self.seed)


def run_generate(request: Generate) -> "Run":
    """A run; ``run.outputs()`` returns the texts."""
    from orderlens.runs.job import generate_job
    from orderlens.runs.run import run_job
    from orderlens.texts.samples import as_samples

    job = generate_job(
        request.model,
        as_samples(request.prompts, "prompts"),
        request.policies,
        _recorded(request, request.prompts),
        temperatures=request.temperatures,
        **_stored(request),
    )
    return run_job(job, request, extend=request.extend)


@dataclass(frozen=True)
class Evaluate(Decoding):
    """Answer benchmark tasks under several reveal orders and grade the answers."""

    model: ModelName
    tasks: Annotated[Sequence[str], replace(TASKS, given=())]
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", orders_option(DECODED)]
    _: KW_ONLY
    limit: Annotated[int | None, limit_option("items per task")] = None
    max_new_tokens: Annotated[int | None, replace(MAX_NEW_TOKENS, shown="each task's own", stored=False)] = (
        None
    )
    temperature: Temperature = 0.0
    seed: Seed = 0
    sources: Annotated["Mapping[str, PathLike] | Sequence[str] | None", SOURCES] = None
    graders: Annotated[
        "Mapping[str, str] | Sequence[str] | None",
        Opt(
            "Grade a task with another rule, e.g. mmlu-pro=first-match.",
            name="grader",
            repeat=True,
            read=pairs("graders", "TASK=RULE"),
            metavar="TASK=RULE",
        ),
    ] = None
    prompts: Annotated[
        "Mapping[str, str] | Sequence[str] | None",
        Opt(
            "Ask a task with another prompt: mmlu-pro=opencompass.",
            name="prompt",
            repeat=True,
            read=pairs("prompts", "TASK=PROMPT"),
            metavar="TASK=PROMPT",
        ),
    ] = None
    overflow: Annotated[Literal["fill", "mask"], OVERFLOW] = "fill"
    chat: Annotated[bool, Opt("Use the model's chat template where it has one.", negative=True)] = True

    @cached_property
    def files(self) -> dict[str, PathLike]:
        """Local file per task."""
        return named_pairs("sources", self.sources)

    @cached_property
    def rules(self) -> dict[str, str]:
        """Grading rule per task."""
        return named_pairs("graders", self.graders)

    @cached_property
    def words(self) -> dict[str, str]:
        """Prompt per task."""
        return named_pairs("prompts", self.prompts)


def named_pairs(option: str, given: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    """Return the pairs of a mapping or of texts NAME=VALUE."""
    return dict(given) if isinstance(given, Mapping) else as_pairs(option, given or ())


def run_evaluate(request: Evaluate) -> "Run":
    """A run; ``run.table("verdicts")`` returns the verdicts.

    ``correct`` is null where a package of the grader is missing; ``regrade`` completes it. Items whose prompt
    leaves no room for the response are not decoded; ``run.spec["data"]["tasks"]`` lists them.
    """
    from orderlens.runs.run import run_job
    from orderlens.tasks.evaluation.job import evaluate_job

    job = evaluate_job(
        request.model,
        request.tasks,
        request.orders,
        request,
        limit=request.limit,
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        seed=request.seed,
        sources=request.files,
        graders=request.rules,
        prompts=request.words,
        overflow=request.overflow,
        chat=request.chat,
    )
    return run_job(job, request)


@dataclass(frozen=True)
class CensusRequest(Computing):
    """Compute log P of a span of each text under all its orders, exactly.

    A span of B positions has 2^B − 1 states and B! orders. The census reports the best and the worst order,
    the mean and distribution over all orders, and the rank of each rule. Positions after the span stay
    masked. Rules that look ahead or compare whole distributions need further passes.
    """

    model: ModelName
    samples: Annotated[
        "Samples", "``Sample``s with targets, or dicts with ``id``, ``prompt`` and ``target``."
    ]
    _: KW_ONLY
    span: Annotated[
        int, Opt("Positions of each span, at most 20; above 12 needs --yes.", least=1, stored=True)
    ] = 10
    start: Annotated[int, Opt("Offset in the target at which the span starts.", least=0, stored=True)] = 0
    spans: Annotated[
        int | None,
        Opt("Number of spans per target, evenly spaced, instead of --start.", least=1, stored=True),
    ] = None
    positions: Annotated[
        Sequence[int],
        Opt(
            "Offsets in the target that form the span, instead of --span and --start; need not be adjacent.",
            stored=True,
        ),
    ] = ()
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", orders_option(COUNTED)] = ()
    allow_short: AllowShort = False
    generate: Annotated[
        bool, Opt("Follow all orders from each prompt at temperature 0 and list the texts they produce.")
    ] = False
    task: Annotated[
        str | None, Opt("With --generate: the task whose items are the prompts and whose grader is used.")
    ] = None
    limit: Limit = None
    max_states: Annotated[int, Opt("With --generate: maximum number of states per prompt.", least=1)] = 20_000
    chat: Chat = False
    yes: Annotated[bool, Opt("Confirm a census of more than 12 positions.")] = False

    @cached_property
    def policies(self) -> "list[Policy]":
        """The parsed orders, by default forced-ar; an order that cannot score is refused."""
        from orderlens.rules import parse_policies

        chosen = parse_policies(self.orders or "forced-ar")
        for policy in chosen:
            policy.refuse_to_score()
        return chosen

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and not self.generate:
            raise BadValueError("task", self.task, "provides prompts to generate from; add --generate")
        if self.max_states != type(self).max_states and not self.generate:
            raise BadValueError(
                "max_states", self.max_states, "limits --generate; add it, or use a smaller --span"
            )
        chosen = list(self.positions)
        if chosen and (min(chosen) < 0 or len(set(chosen)) < len(chosen)):
            raise BadValueError("positions", chosen, "must be different offsets in the target, from 0 on")
        given = {"start": self.start, "spans": self.spans, "positions": chosen}
        several = [name for name, value in given.items() if value]
        if several and self.generate:
            raise BadValueError(
                several[0], given[several[0]], "does not apply: --generate starts after the prompt"
            )
        if self.generate and self.orders not in ((), COUNTED):
            raise BadValueError("orders", self.orders, "does not apply: --generate follows all orders")
        if len(several) > 1:
            raise BadValueError(several[1], given[several[1]], f"places the span; leave out --{several[0]}")


def run_census(request: CensusRequest) -> "Census":
    """A census; ``census.spans()``, ``census.rules()`` and ``census.run`` return its tables."""
    from orderlens.analysis.census import Census
    from orderlens.runs.census import census_job
    from orderlens.runs.run import run_job
    from orderlens.texts.samples import as_samples

    if request.limit is not None and request.task is None:
        raise BadValueError("limit", request.limit, "limits the items of --task; give fewer samples")
    if request.generate:
        return _census_of_texts(request)
    job = census_job(
        request.model,
        as_samples(request.samples),
        request.policies,
        _recorded(request, request.samples),
        allow_short=request.allow_short,
        yes=request.yes,
        **_stored(request),
    )
    return Census(run_job(job, request))


def _census_of_texts(request: CensusRequest) -> "Census":
    from orderlens.analysis.census import Census
    from orderlens.runs.run import run_job
    from orderlens.tasks.evaluation.texts import texts_job
    from orderlens.texts.samples import as_samples

    prompts = as_samples(request.samples, "prompts")
    if prompts and request.task is not None:
        raise BadValueError("task", request.task, f"provides the prompts; leave out the {len(prompts)} given")
    job = texts_job(
        request.model,
        prompts,
        _recorded(request, request.samples),
        span=request.span,
        max_states=request.max_states,
        task=request.task,
        limit=request.limit,
        allow_short=request.allow_short,
        chat=request.chat,
    )
    return Census(run_job(job, request))


def _stored(request: Computing) -> dict[str, Any]:
    """Return the verb's own options that the spec of its run contains; the job adds those of ``Decoding``."""
    shared = {item.name for item in options(Decoding)}
    names = [item.name for item in options(type(request)) if item.opt.stored]
    return {name: getattr(request, name) for name in names if name not in shared}


def _recorded(request: Computing, samples: Any) -> Computing:
    """Return the request with the origin of its samples, if it is known."""
    from orderlens.texts.loading import recorded

    return request if request.data_record else replace(request, data_record=recorded(samples))


score = verb(Score, run_score)
generate = verb(Generate, run_generate)
evaluate = verb(Evaluate, run_evaluate)
census = verb(CensusRequest, run_census)
