"""The front door: ``score``, ``generate`` and ``evaluate`` (``replicate`` has a package).

Each verb is a request, which is its command line and its Python signature, and the work that turns it
into a job (``orderlens.runs``) and hands it to an engine. No postponed annotations here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.runs.options import POLICIES, Computing, ModelName, PathLike, Seed, as_pairs, pairs
from orderlens.runs.request import BadValueError, Opt, entries, verb

if TYPE_CHECKING:
    from orderlens.rules import Policy
    from orderlens.rules.catalogue import PolicyLike
    from orderlens.store.reader import Run
    from orderlens.texts.samples import Samples

SCORED = "forced-ar,reverse-ar,random,oracle-max-q,oracle-margin,oracle-min-q"
DECODED = "forced-ar,max-prob,top-margin,random"
Chat = Annotated[bool, Opt("Put each prompt as a question in the model's chat template.", stored=True)]
Extend = Annotated[bool, Opt("Add new orders and samples to the complete run in --out.")]


def _temperatures(text: str) -> list[float]:
    try:
        return [float(part) for part in entries(text)]
    except ValueError:
        raise BadValueError("temperature", text, "must be a number, or several separated by commas") from None


@dataclass(frozen=True)
class Score(Computing):
    """Score fixed targets under several reveal orders and store every reveal."""

    model: ModelName
    samples: Annotated[
        "Samples", "``Sample``s with targets, or dicts with ``id``, ``prompt`` and ``target``."
    ]
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", Opt(POLICIES, given=SCORED, metavar="LIST")]
    _: KW_ONLY
    circulation: Annotated[
        int,
        Opt(
            "Number of adjacent swaps to measure per sample and order (table circulation).",
            least=0,
            stored=True,
        ),
    ] = 0
    couplings: Annotated[
        int,
        Opt(
            "Number of jointly committed token sets per trace to re-score one token at a time "
            "(table couplings).",
            least=0,
            stored=True,
        ),
    ] = 0
    noise_floor: Annotated[
        bool, Opt("Rescore each path under harmless perturbations (table noise).", stored=True)
    ] = False
    chat: Chat = False
    extend: Extend = False

    @cached_property
    def policies(self) -> "list[Policy]":
        """The orders, parsed; those that cannot score are refused."""
        from orderlens.rules import parse_policies

        chosen = parse_policies(self.orders)
        for policy in chosen:
            policy.refuse_to_score()
        return chosen


def run_score(request: Score) -> "Run":
    """The run; ``run.reveals()`` and ``run.samples()`` give its tables."""
    from orderlens.runs.job import score_job
    from orderlens.runs.run import run_job
    from orderlens.texts.samples import as_samples

    job = score_job(
        request.model,
        as_samples(request.samples),
        request.policies,
        _recorded(request, request.samples),
        circulation=request.circulation,
        couplings=request.couplings,
        noise_floor=request.noise_floor,
        chat=request.chat,
    )
    return run_job(job, request, extend=request.extend)


@dataclass(frozen=True)
class Generate(Computing):
    """Decode prompts under several reveal orders or policies."""

    model: ModelName
    prompts: Annotated["Samples", "texts, ``Sample``s or dicts with a ``prompt``; one text is one prompt."]
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", Opt(POLICIES, given=DECODED, metavar="LIST")]
    _: KW_ONLY
    max_new_tokens: Annotated[int, Opt("Tokens to generate, at most 16384.", stored=True)] = 128
    temperature: Annotated[
        "float | Sequence[float]",
        Opt("0 is greedy; several, separated by commas, give a sweep.", read=_temperatures, metavar="LIST"),
    ] = 0.0
    seed: Seed = 0
    stop_at_eos: Annotated[
        bool, Opt("End after the block that holds an EOS.", negative=True, stored=True)
    ] = True
    chat: Chat = False
    extend: Extend = False

    @cached_property
    def policies(self) -> "list[Policy]":
        """The orders, parsed; those that need a target are refused."""
        from orderlens.runs.job import deployable

        return deployable(self.orders)

    @cached_property
    def temperatures(self) -> list[float]:
        """The temperatures, one or several; numbers that cannot be are refused, and so is the length."""
        from orderlens.common.arguments import as_temperatures
        from orderlens.runs.job import check_generation

        found = as_temperatures(self.temperature)
        check_generation(self.max_new_tokens, found, self.seed)
        return found


def run_generate(request: Generate) -> "Run":
    """The run; ``run.outputs()`` holds the texts."""
    from orderlens.runs.job import generate_job
    from orderlens.runs.run import run_job
    from orderlens.texts.samples import as_samples

    job = generate_job(
        request.model,
        as_samples(request.prompts, "prompts"),
        request.policies,
        _recorded(request, request.prompts),
        max_new_tokens=request.max_new_tokens,
        temperatures=request.temperatures,
        seed=request.seed,
        stop_at_eos=request.stop_at_eos,
        chat=request.chat,
    )
    return run_job(job, request, extend=request.extend)


@dataclass(frozen=True)
class Evaluate(Computing):
    """Decode and grade benchmarks under several reveal orders; an unfinished run is resumed."""

    model: ModelName
    tasks: Annotated[
        Sequence[str], Opt("Tasks, separated by commas; see 'orderlens tasks'.", given=(), metavar="LIST")
    ]
    orders: Annotated["PolicyLike | Iterable[PolicyLike]", Opt(POLICIES, given=DECODED, metavar="LIST")]
    _: KW_ONLY
    limit: Annotated[int | None, Opt("Maximum number of items per task.", least=1)] = None
    max_new_tokens: Annotated[
        int | None, Opt("Longest response; 16384 is the paper's and the most.", shown="by task")
    ] = None
    temperature: Annotated[float, Opt("0 is greedy.")] = 0.0
    seed: Seed = 0
    sources: Annotated[
        "Mapping[str, PathLike] | Sequence[str] | None",
        Opt(
            "TASK=FILE: a local file instead of the hub.",
            name="source",
            repeat=True,
            read=pairs("sources", "TASK=FILE"),
            metavar="TASK=FILE",
        ),
    ] = None
    graders: Annotated[
        "Mapping[str, str] | Sequence[str] | None",
        Opt(
            "TASK=RULE, e.g. mmlu-pro=first-match.",
            name="grader",
            repeat=True,
            read=pairs("graders", "TASK=RULE"),
            metavar="TASK=RULE",
        ),
    ] = None
    chat: Annotated[bool, Opt("Use the model's chat template where it has one.", negative=True)] = True

    @cached_property
    def files(self) -> dict[str, PathLike]:
        """Local file per task."""
        return named_pairs("sources", self.sources)

    @cached_property
    def rules(self) -> dict[str, str]:
        """Grading rule per task."""
        return named_pairs("graders", self.graders)


def named_pairs(option: str, given: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    """Return what a mapping or several texts NAME=VALUE say."""
    return dict(given) if isinstance(given, Mapping) else as_pairs(option, given or ())


def run_evaluate(request: Evaluate) -> "Run":
    """The run; ``run.table("verdicts")`` holds the verdicts.

    ``correct`` is null for responses whose grader's packages are missing (``regrade`` completes them). Items
    whose prompt leaves no room for the response are not decoded; ``run.spec["data"]["tasks"]`` names them.
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
        chat=request.chat,
    )
    return run_job(job, request)


def _recorded(request: Computing, samples: Any) -> Computing:
    """Return the request with where its samples came from, where that is known."""
    from dataclasses import replace

    from orderlens.texts.loading import recorded

    return request if request.data_record else replace(request, data_record=recorded(samples))


score = verb(Score, run_score)
generate = verb(Generate, run_generate)
evaluate = verb(Evaluate, run_evaluate)
