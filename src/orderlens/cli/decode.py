"""``orderlens score``, ``generate``, ``sweep``, ``evaluate`` and ``census``: texts under several orders.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.api import (
    DECODED,
    CensusRequest,
    Evaluate,
    Generate,
    Score,
    run_census,
    run_evaluate,
    run_generate,
    run_score,
)
from orderlens.cli.command import Output, takes
from orderlens.cli.terminal import keeping, kept_in, print_line
from orderlens.errors import UserInputError
from orderlens.registry import refuse_unknown
from orderlens.rules.catalogue import preset_names
from orderlens.runs.options import (
    DATA,
    MAX_NEW_TOKENS,
    PREFIX_TOKENS,
    TARGET_TOKENS,
    TEMPERATURES,
    AllowShort,
    Computing,
    Limit,
    ModelName,
    RunOut,
    Seed,
    Split,
    orders_option,
)
from orderlens.runs.request import BadValueError, Opt, Request

if TYPE_CHECKING:
    from orderlens.models.protocol import Model
    from orderlens.rules.policy import Policy
    from orderlens.runs.options import ProgressSink
    from orderlens.texts.loading import LoadedData

SWEPT = f"{DECODED},max-prob:select=argmax"
"""Above T = 0 max-prob has two versions: compare drawn tokens, or choose the position and then draw."""


@dataclass(frozen=True, kw_only=True)
class Texts(Request):
    """Options for the input texts and their split into prompt and target."""

    data: Annotated[str | None, replace(DATA, shown="passages")] = None
    limit: Limit = None
    prefix_tokens: Annotated[
        int | None, replace(PREFIX_TOKENS, shown="32, or fewer if all texts are short")
    ] = None
    allow_short: AllowShort = False
    split: Split = "none"

    def texts(self, model: "Model", target_tokens: int | None = 0) -> "LoadedData":
        """Load the samples; without a length of the target, the default one."""
        from orderlens.texts.loading import SplitRule, load_data

        rule = SplitRule.of(self.prefix_tokens, target_tokens, self.allow_short, self.split)
        return load_data(
            "passages" if self.data is None else self.data, model.tokenizer, rule, limit=self.limit
        )


@dataclass(frozen=True, kw_only=True)
class Targets(Texts):
    """Texts that are split into prompt and target."""

    target_tokens: Annotated[
        int | None, replace(TARGET_TOKENS, shown="128, or fewer if all texts are short")
    ] = None


SeedOfDraws = Annotated[int, Opt("Seed of the masks and orders of --draws.", least=0)]


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(Score, Targets, Output):
    """``score`` with its texts."""

    samples: Any = ()
    likelihood: Annotated[
        Sequence[str],
        Opt(
            "Also print the likelihood by these methods: policy, elbo, mixture, separated by commas.",
            metavar="LIST",
        ),
    ] = ()
    draws: Annotated[int, Opt("Masks of method elbo, orders of method mixture.", least=1)] = 128
    seed: SeedOfDraws = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.likelihood:
            refuse_unknown("method", name, ("policy", "elbo", "mixture"))
        if "policy" in self.likelihood and not self.exact_policies:
            raise UserInputError(
                "--likelihood policy: no order of --orders has an exact likelihood; add one that draws "
                "nothing and does not see the target, such as forced-ar, or choose mixture"
            )

    @property
    def exact_policies(self) -> "list[Policy]":
        """The policies with an exact likelihood."""
        return [policy for policy in self.policies if policy.likelihood() == "exact"]

    def likelihoods(self, model: "Model", samples: Any) -> "list[dict[str, object]]":
        """Return the averages by method; method policy once per order with an exact likelihood."""
        from orderlens.runs.likelihood import averages, likelihood

        out: list[dict[str, object]] = []
        for name in self.likelihood:
            for policy in self.exact_policies if name == "policy" else ["forced-ar"]:
                how: dict[str, Any] = {"method": name, "draws": self.draws, "seed": self.seed}
                table = likelihood(model, samples, policy=policy, anchor=self.anchor, **how)
                label = name if isinstance(policy, str) else f"policy, {policy.spec}"
                out += [row | {"method": label} for row in averages([table])]
        return out


@takes(ScoreCommand, Score)
def score(request: ScoreCommand) -> None:
    """Load, score, print."""
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_summary

    policies = request.policies  # checked before the model is loaded
    model = request.load(request.model)
    data = request.texts(model, request.target_tokens)
    shorter = "--limit, --target-tokens"
    with (
        keeping(lambda: kept_in(str(request.out))),
        progress_bar("scoring (tokens)", None, quiet=request.json, shorter=shorter) as bar,
    ):
        ready = replace(request, model=model, samples=data.samples, orders=policies, progress=bar)
        run = run_score(replace(ready, data_record=data.record()))
    named, out = preset_names(request.orders), str(request.out)
    found = request.likelihoods(model, data.samples)
    show_summary(run, out=out, as_json=request.json, presets=named, likelihoods=found)


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(Generate, Texts, Output):
    """``generate`` with its texts or prompts."""

    prompts: Any = ()
    prompt: Annotated[Sequence[str], Opt("Prompt to decode instead of --data; repeatable.", repeat=True)] = ()
    template: Annotated[
        Sequence[str],
        Opt("Text with holes to fill, e.g. 'Once [[8]] and [[4]].'; repeatable.", repeat=True),
    ] = ()
    live: Annotated[bool, Opt("Show the texts in the terminal while they are decoded.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.prompt or self.template) and any(
            getattr(self, item.name) != item.default for item in fields(Texts)
        ):
            raise UserInputError(
                "--prompt and --template replace --data; leave out --data, --limit and options for splitting"
            )
        if self.live and (self.chosen_engine.kind != "local" or (self.workers or 1) > 1):
            raise UserInputError("--live works with a single process; leave out --engine and --workers")

    def texts(self, model: "Model", target_tokens: int | None = 0) -> "LoadedData":
        """Return the prompts and templates of the command line, or the texts of the data."""
        if not (self.prompt or self.template):
            return super().texts(model, target_tokens)
        from orderlens.texts.loading import LoadedData
        from orderlens.texts.samples import Sample

        given = [Sample(f"prompt-{place}", text) for place, text in enumerate(self.prompt)]
        given += [Sample(str(place), "", template=text) for place, text in enumerate(self.template)]
        return LoadedData(given, "command line" if self.prompt else "template", len(given))


@takes(GenerateCommand, Generate)
def generate(request: GenerateCommand) -> None:
    """Load, decode, print."""
    _decode(request, request, live=request.live and _can_be_live(as_json=request.json))


@dataclass(frozen=True, kw_only=True)
class SweepCommand(Computing, Texts, Output):
    """Generate texts at several temperatures, in one run.

    Short for 'orderlens generate --temperature 0,0.3,… --no-stop-at-eos', which has further options.
    """

    out: RunOut
    model: ModelName
    orders: Annotated[str, orders_option(SWEPT)] = SWEPT
    temperatures: Annotated["Sequence[float | str]", TEMPERATURES] = (0, 0.3, 0.5, 0.7, 1, 1.3, 1.5, 2)
    max_new_tokens: Annotated[int, MAX_NEW_TOKENS] = 128
    seed: Seed = 0


@takes(SweepCommand)
def sweep(request: SweepCommand) -> None:
    """Decode at several temperatures."""
    shared = {
        item.name: getattr(request, item.name) for item in fields(request) if item.name != "temperatures"
    }
    wider = GenerateCommand(**shared, temperature=request.temperatures, stop_at_eos=False)
    _decode(wider, wider)


def _decode(request: Generate, texts: GenerateCommand, *, live: bool = False) -> None:
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_summary

    policies, temperatures = request.policies, request.temperatures  # checked before the model is loaded
    model = request.load(request.model)
    data = texts.texts(model)
    quiet, shorter = texts.json or live, "--limit, --max-new-tokens"
    with (
        keeping(lambda: kept_in(str(request.out))),
        progress_bar("generating (tokens)", None, quiet=quiet, shorter=shorter) as bar,
        _canvas(bar, model, live=live) as shown,
    ):
        ready = replace(request, model=model, prompts=data.samples, orders=policies, temperature=temperatures)
        run = run_generate(replace(ready, progress=shown, data_record=data.record()))
    named = preset_names(request.orders)
    show_summary(run, out=str(request.out), as_json=texts.json, presets=named)


def _can_be_live(*, as_json: bool) -> bool:
    """Whether texts can be shown during decoding; if not, print why."""
    from orderlens.cli.console import stderr

    if as_json or not stderr.is_terminal:
        print_line("--live needs a terminal and does not work with --json; decoding without it")
        return False
    return True


@contextmanager
def _canvas(bar: "ProgressSink", model: "Model", *, live: bool) -> "Iterator[ProgressSink]":
    if not live:
        yield bar
        return
    from orderlens.cli.console import live_progress, stderr

    with live_progress(bar, stderr, lambda token: model.tokenizer.decode([token])) as shown:
        yield shown


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(Evaluate, Output):
    """``evaluate``, or the grading alone."""

    regrade: Annotated[bool, Opt("Grade the stored responses of the run again, without a model.")] = False


@takes(EvaluateCommand, Evaluate)
def evaluate(request: EvaluateCommand) -> None:
    """Decode and grade, or grade again, and print."""
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_accuracies

    out = str(request.out)
    if request.regrade:
        from orderlens.tasks.evaluation import regrade

        with keeping(
            lambda: f"the responses and earlier verdicts in {out} are unchanged; run the same command again"
        ):
            run = regrade(out, graders=request.rules)
        show_accuracies(run, out, as_json=request.json)
        return
    if not request.tasks:
        raise UserInputError(
            "--tasks is missing; name tasks, separated by commas; 'orderlens tasks' lists them"
        )
    shorter = "--limit, --max-new-tokens"
    with (
        keeping(lambda: kept_in(out)),
        progress_bar("evaluating (tokens)", None, quiet=request.json, shorter=shorter) as bar,
    ):
        run = run_evaluate(replace(request, progress=bar))
    show_accuracies(run, out, as_json=request.json, presets=preset_names(request.orders))


@dataclass(frozen=True, kw_only=True)
class CensusCommand(CensusRequest, Targets, Output):
    """``census`` with its texts."""

    samples: Any = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and self.data is not None:
            raise BadValueError("data", self.data, "does not apply: --task provides the prompts")


@takes(CensusCommand, CensusRequest)
def census(request: CensusCommand) -> None:
    """Load, evaluate all states, print where the rules stand."""
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_census, show_texts_census

    policies = request.policies  # refused before the model is loaded
    model = request.load(request.model)
    given = request.task is None
    data = request.texts(model, 0 if request.generate else request.target_tokens) if given else None
    what = "following orders (prompts)" if request.generate else "evaluating (states)"
    with (
        keeping(lambda: kept_in(str(request.out))),
        progress_bar(what, None, quiet=request.json, shorter="--limit, --span") as bar,
    ):
        ready = replace(request, model=model, orders=() if request.generate else policies, progress=bar)
        if data is not None:
            ready = replace(ready, samples=data.samples, data_record=data.record(), limit=None)
        found = run_census(ready)
    show = show_texts_census if request.generate else show_census
    show(found, out=str(request.out), as_json=request.json)
