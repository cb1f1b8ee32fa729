"""``orderlens score``, ``generate``, ``sweep`` and ``evaluate``: texts under several orders, into a run.

No postponed annotations here: the types of fields are read when the command line is built.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

from orderlens.api import (
    DECODED,
    Chat,
    Evaluate,
    Extend,
    Generate,
    Score,
    run_evaluate,
    run_generate,
    run_score,
)
from orderlens.cli.command import Output, takes
from orderlens.errors import UserInputError
from orderlens.runs.options import (
    POLICIES,
    Computing,
    DataName,
    Limit,
    ModelName,
    PrefixTokens,
    RunOut,
    Seed,
    Split,
    TargetTokens,
)
from orderlens.runs.request import Opt, Request

if TYPE_CHECKING:
    from orderlens.models.protocol import Model
    from orderlens.runs.options import ProgressSink
    from orderlens.texts.loading import LoadedData

SWEPT = f"{DECODED},max-prob:select=argmax"
"""Above T = 0 max-prob means two rules: compare drawn tokens, or choose the position first and then draw."""


@dataclass(frozen=True, kw_only=True)
class Texts(Request):
    """Which texts, and how rows with one ``text`` are split."""

    data: DataName = "passages"
    limit: Limit = None
    prefix_tokens: PrefixTokens = 32
    allow_short: Annotated[bool, Opt("Keep texts that are shorter than that.")] = False
    split: Split = "none"

    def texts(self, model: "Model", target_tokens: int = 0) -> "LoadedData":
        """Return the samples that the options ask for."""
        from orderlens.texts.loading import SplitRule, load_data

        rule = SplitRule(self.prefix_tokens, target_tokens, self.allow_short, self.split)
        return load_data(self.data, model.tokenizer, rule, limit=self.limit)


@dataclass(frozen=True, kw_only=True)
class Targets(Texts):
    """Texts that are split into prompt and target."""

    target_tokens: TargetTokens = 128


@dataclass(frozen=True, kw_only=True)
class ScoreCommand(Score, Targets, Output):
    """``score`` with its texts."""

    samples: Any = ()


@takes(ScoreCommand, Score)
def score(asked: ScoreCommand) -> None:
    """Load, score, print."""
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_summary
    from orderlens.cli.terminal import keeping, kept_in

    policies = asked.policies  # refused before the model is loaded
    model = asked.load(asked.model)
    data = asked.texts(model, asked.target_tokens)
    shorter = "--limit, --target-tokens"
    with (
        keeping(lambda: kept_in(str(asked.out))),
        progress_bar("scoring (tokens)", None, quiet=asked.json, shorter=shorter) as bar,
    ):
        ready = replace(asked, model=model, samples=data.samples, orders=policies, progress=bar)
        run = run_score(replace(ready, data_record=data.record()))
    show_summary(run, out=str(asked.out), as_json=asked.json)


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(Generate, Texts, Output):
    """``generate`` with its texts or prompts."""

    prompts: Any = ()
    prompt: Annotated[
        Sequence[str], Opt("A prompt instead of --data; may be given several times.", repeat=True)
    ] = ()
    template: Annotated[
        Sequence[str],
        Opt("Text with holes to fill instead of --data: 'Once [[8]] and [[4]].'", repeat=True),
    ] = ()
    live: Annotated[bool, Opt("Show the canvas filling (in a terminal).")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.prompt or self.template) and any(
            getattr(self, item.name) != item.default for item in fields(Texts)
        ):
            raise UserInputError(
                "--prompt and --template take the place of --data: leave out --data, --limit and splitting"
            )
        if self.live and (self.chosen_engine.kind != "local" or (self.workers or 1) > 1):
            raise UserInputError("--live shows what this process decodes; leave out --engine and --workers")

    def texts(self, model: "Model", target_tokens: int = 0) -> "LoadedData":
        """Return the prompts and templates of the command line, or the texts of the data."""
        if not (self.prompt or self.template):
            return super().texts(model, target_tokens)
        from orderlens.texts.loading import LoadedData
        from orderlens.texts.samples import Sample

        given = [Sample(f"prompt-{place}", text) for place, text in enumerate(self.prompt)]
        given += [Sample(str(place), "", template=text) for place, text in enumerate(self.template)]
        return LoadedData(given, "command line" if self.prompt else "template", len(given))


@takes(GenerateCommand, Generate)
def generate(asked: GenerateCommand) -> None:
    """Load, decode, print."""
    _decode(asked, asked, live=asked.live and _can_be_live(as_json=asked.json))


@dataclass(frozen=True, kw_only=True)
class SweepCommand(Computing, Texts, Output):
    """Decode prompts over several temperatures into one run.

    A short form of 'orderlens generate --temperature 0,0.3,… --no-stop-at-eos'.
    """

    out: RunOut
    model: ModelName
    orders: Annotated[str, Opt(POLICIES, metavar="LIST")] = SWEPT
    temperatures: Annotated[Sequence[float], Opt("Separated by commas.")] = (0, 0.3, 0.5, 0.7, 1, 1.3, 1.5, 2)
    max_new_tokens: Annotated[int, Opt("Tokens to generate, at most 16384.")] = 128
    seed: Seed = 0
    stop_at_eos: Annotated[bool, Opt("End after the block that holds an EOS.", negative=True)] = False
    chat: Chat = False
    extend: Extend = False


@takes(SweepCommand)
def sweep(asked: SweepCommand) -> None:
    """Decode at several temperatures."""
    shared = {item.name: getattr(asked, item.name) for item in fields(asked) if item.name != "temperatures"}
    wider = GenerateCommand(**shared, temperature=asked.temperatures)
    _decode(wider, wider)


def _decode(asked: Generate, texts: GenerateCommand, *, live: bool = False) -> None:
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_summary
    from orderlens.cli.terminal import keeping, kept_in

    policies, temperatures = asked.policies, asked.temperatures  # refused before the model is loaded
    model = asked.load(asked.model)
    data = texts.texts(model)
    quiet, shorter = texts.json or live, "--limit, --max-new-tokens"
    with (
        keeping(lambda: kept_in(str(asked.out))),
        progress_bar("generating (tokens)", None, quiet=quiet, shorter=shorter) as bar,
        _canvas(bar, model, live=live) as shown,
    ):
        ready = replace(asked, model=model, prompts=data.samples, orders=policies, temperature=temperatures)
        run = run_generate(replace(ready, progress=shown, data_record=data.record()))
    show_summary(run, out=str(asked.out), as_json=texts.json)


def _can_be_live(*, as_json: bool) -> bool:
    """Whether the canvas can be shown; a note says why not."""
    from orderlens.cli.console import print_line, stderr

    if as_json or not stderr.is_terminal:
        print_line("--live needs a terminal and no --json; decoding without it")
        return False
    return True


@contextmanager
def _canvas(bar: "ProgressSink", model: "Model", *, live: bool) -> "Iterator[ProgressSink]":
    if not live:
        yield bar
        return
    from orderlens.cli.console import stderr
    from orderlens.cli.live import live_progress

    with live_progress(bar, stderr, lambda token: model.tokenizer.decode([token])) as shown:
        yield shown


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(Evaluate, Output):
    """``evaluate``, or the grading alone."""

    regrade: Annotated[bool, Opt("Only grade the responses in the run again; needs no model.")] = False


@takes(EvaluateCommand, Evaluate)
def evaluate(asked: EvaluateCommand) -> None:
    """Decode and grade, or grade again, and print."""
    from orderlens.cli.console import progress_bar
    from orderlens.cli.summary import show_accuracies
    from orderlens.cli.terminal import keeping, kept_in

    out = str(asked.out)
    if asked.regrade:
        from orderlens.tasks.evaluation import regrade

        with keeping(lambda: f"the responses and earlier verdicts in {out} are as they were; run it again"):
            run = regrade(out, graders=asked.rules)
        show_accuracies(run, out, as_json=asked.json)
        return
    if not asked.tasks:
        raise UserInputError("--tasks is missing; name tasks separated by commas, see 'orderlens tasks'")
    shorter = "--limit, --max-new-tokens"
    with (
        keeping(lambda: kept_in(out)),
        progress_bar("evaluating (tokens)", None, quiet=asked.json, shorter=shorter) as bar,
    ):
        run = run_evaluate(replace(asked, progress=bar))
    show_accuracies(run, out, as_json=asked.json)
