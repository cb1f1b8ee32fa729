"""IFEval: prompts with instructions that a program can verify.

``strict`` is the paper's prompt-level rule: correct means that every instruction is followed. Every verdict
also holds the outcome per instruction and both loose outcomes; the grader ``loose`` only changes what
``correct`` means.

The checkers are lm-eval's, made total, deterministic and bounded in time: no download at import, language
detection with a fixed seed, no dependence on the global random state, a sentence splitter that works offline,
and texts of more than ``LONG`` characters reduced beforehand so that no regular expression runs in quadratic
time (reductions keep the verdict). Two rows of the published data (1122, 1129) ask for the characters ``#``
and ``!`` where lm-eval expects a letter and draws one at random instead; here the character is counted.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any

from orderlens.errors import MissingPackageError
from orderlens.tasks.graders import Verdict, incorrect, instruction_flaw, no_text, response_text
from orderlens.tasks.protocol import Benchmark, Document
from orderlens.texts.sources import HubFile

LONG = 10_000
INSTALL_HINT = "IFEval needs lm-eval's checkers: pip install 'orderlens[eval]'"
_CHECK_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    re.error,
)
_SENTENCES = "length_constraints:number_sentences"
_CAPITALS = "change_case:capital_word_frequency"
_LETTERS = "keywords:letter_frequency"


class Checker:
    """One instruction of one document, ready to judge texts.

    Attributes:
        notes: remarks for the verdict (missing arguments, fallbacks, failures); filled while judging.
    """

    def __init__(self, instruction_id: str, kwargs: Mapping[str, Any]) -> None:
        self.id = instruction_id
        self.notes: list[str] = []
        self._instruction = self._build(instruction_id, kwargs)
        self._kwargs = dict(kwargs)

    def follows(self, text: str) -> bool:
        """Say whether ``text`` follows the instruction; an empty text never does."""
        if self._instruction is None or not text.strip():
            return False
        try:
            return self._judge(text)
        except _CHECK_ERRORS as error:
            self._note(f"{self.id} could not be checked ({type(error).__name__})")
            return False

    def _build(self, instruction_id: str, kwargs: Mapping[str, Any]) -> Any | None:
        known = checkers().INSTRUCTION_DICT
        if instruction_id not in known:
            self._note(f"unknown instruction '{instruction_id}'")
            return None
        try:
            instruction = known[instruction_id](instruction_id)
            wanted = instruction.get_instruction_args_keys()
            given = {name: kwargs[name] for name in wanted if kwargs.get(name) not in (None, "", [])}
            if missing := [name for name in wanted if name not in given]:
                self._note(f"{instruction_id} lacks '{missing[0]}'")
                return None
            instruction.build_description(**given)
        except _CHECK_ERRORS as error:
            self._note(f"{instruction_id} has unusable arguments ({type(error).__name__})")
            return None
        return instruction

    def _judge(self, text: str) -> bool:
        assert self._instruction is not None
        if self.id in (_SENTENCES, _CAPITALS):
            return self._judge_by_sentences(text)
        if self.id == _LETTERS and not re.fullmatch("[a-zA-Z]", str(self._kwargs["letter"])):
            return self._judge_character(text)
        if len(text) > LONG and self.id in _REDUCTIONS:
            text = _REDUCTIONS[self.id](text)
        return bool(self._instruction.check_following(text))

    def _judge_by_sentences(self, text: str) -> bool:
        from orderlens.tasks import sentences

        assert self._instruction is not None
        trained = sentences.has_trained_splitter()
        if trained and len(text) <= LONG:
            return bool(self._instruction.check_following(text))
        if not trained:
            self._note(sentences.FALLBACK_NOTE)
        arguments = self._instruction.get_instruction_args()
        if self.id == _SENTENCES:
            bound, relation = arguments["num_sentences"], arguments["relation"]
            return compare(sentences.count_sentences(text, bound), relation, bound)
        bound, relation = arguments["capital_frequency"], arguments["capital_relation"]
        return compare(sentences.count_capital_words(text, bound), relation, bound)

    def _judge_character(self, text: str) -> bool:
        character, bound = str(self._kwargs["letter"]).lower(), self._kwargs["let_frequency"]
        self._note(f"counted the character {character!r}, where lm-eval would draw a random letter")
        return compare(text.lower().count(character), self._kwargs["let_relation"], bound)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def compare(count: int, relation: str, bound: int) -> bool:
    """Apply ``less than`` or ``at least``."""
    return count < bound if relation == "less than" else count >= bound


def loosened(text: str) -> list[str]:
    """Return the forms of a response that IFEval's loose metric tries, without repeats, strict form first."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    forms = [cuts[0], cuts[0].replace("*", ""), *cuts[1:], *(cut.replace("*", "") for cut in cuts[1:])]
    return list(dict.fromkeys(forms))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Fix the checkers' seeds and silence their log, which repeats whole responses; restore both after."""
    from langdetect import DetectorFactory
    from lm_eval.tasks.ifeval import instructions

    state, seed, disabled = random.getstate(), DetectorFactory.seed, instructions.logger.disabled
    random.seed(0)
    DetectorFactory.seed = 0
    instructions.logger.disabled = True
    try:
        yield
    finally:
        random.setstate(state)
        DetectorFactory.seed = seed
        instructions.logger.disabled = disabled


@cache
def checkers() -> ModuleType:
    """Return lm-eval's instruction registry, without its nltk download at import."""
    try:
        import nltk

        download, nltk.download = nltk.download, lambda *_args, **_kwargs: False
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                from lm_eval.tasks.ifeval import instructions_registry
        finally:
            nltk.download = download
    except ImportError as error:
        raise MissingPackageError(f"{INSTALL_HINT} ({error.name or error} is missing)") from error
    return instructions_registry  # type: ignore[no-any-return]


def _keep_to_last(mark: str) -> Callable[[str], str]:
    """Cut every line after its last ``mark``; a match must end in ``mark``, so none is lost."""

    def reduce(text: str) -> str:
        kept = ((line, line.rfind(mark)) for line in text.split("\n"))
        return "\n".join(line[: place + len(mark)] if place >= 0 else "" for line, place in kept)

    return reduce


def _squeeze(text: str) -> str:
    """Shorten white space to two characters: the first, and a line break if the rest held one."""
    return re.sub(r"\s{3,}", lambda run: run[0][0] + ("\n" if "\n" in run[0][1:] else " "), text)


_REDUCTIONS: dict[str, Callable[[str], str]] = {
    "detectable_content:number_placeholders": _keep_to_last("]"),
    "detectable_format:title": _keep_to_last(">>"),
    "detectable_format:number_bullet_lists": _squeeze,
    "detectable_content:postscript": _squeeze,
}


def write_prompt(doc: Document) -> str:
    """Return the prompt as published; anything added could break an instruction about the whole text."""
    return str(doc["prompt"])


def grade(doc: Document, response: object, mode: str = "strict") -> Verdict:
    """Check every instruction of ``doc``, strictly and loosely."""
    wanted = _instructions(doc)
    if not wanted:
        return incorrect("the document has no usable instruction_id_list and kwargs", mode)
    checkers()
    text = response_text(response)
    if text is None:
        return _verdict(
            mode, [name for name, _ in wanted], [(False, False)] * len(wanted), [no_text(response)]
        )
    with deterministic():
        judges = [Checker(name, kwargs) for name, kwargs in wanted]
        outcomes = [_judge(judge, text) for judge in judges]
    notes = [note for judge in judges for note in judge.notes]
    return _verdict(mode, [judge.id for judge in judges], outcomes, notes)


def find_flaw(doc: Document) -> str | None:
    """Return what makes a document ungradable; instructions are looked up if lm-eval is installed."""
    wrong = instruction_flaw(doc)
    if wrong is not None:
        return wrong
    try:
        checkers()
    except MissingPackageError:
        return None
    with deterministic():
        notes = [note for name, kwargs in _instructions(doc) for note in Checker(name, kwargs).notes]
    return f"'instruction_id_list': {notes[0]}" if notes else None


def _instructions(doc: Document) -> list[tuple[str, dict[str, Any]]]:
    names, kwargs = doc.get("instruction_id_list"), doc.get("kwargs")
    if (
        not isinstance(names, list | tuple)
        or not isinstance(kwargs, list | tuple)
        or len(names) != len(kwargs)
    ):
        return []
    pairs = zip(names, kwargs, strict=True)
    return [(str(name), dict(given) if isinstance(given, dict) else {}) for name, given in pairs]


def _judge(judge: Checker, text: str) -> tuple[bool, bool]:
    strict = judge.follows(text)
    return strict, strict or any(judge.follows(form) for form in loosened(text)[1:])


def _verdict(mode: str, names: list[str], outcomes: list[tuple[bool, bool]], notes: list[str]) -> Verdict:
    strict, loose = [first for first, _ in outcomes], [second for _, second in outcomes]
    counted = strict if mode == "strict" else loose
    failed = [name for name, good in zip(names, counted, strict=True) if not good]
    reason = f"not followed: {', '.join(failed)}" if failed else f"all {len(names)} instructions followed"
    return Verdict(
        correct=not failed,
        extracted=f"{sum(counted)}/{len(counted)}",
        reason="; ".join([reason, *dict.fromkeys(notes)]),
        grader=mode,
        per_instruction=strict,
        loose=all(loose),
        per_instruction_loose=loose,
    )


TASK = Benchmark(
    name="ifeval",
    summary="verifiable instructions (541 prompts, 834 instructions)",
    hub=HubFile("google/IFEval", "ifeval_input_data.jsonl", "966cd89545d6b6acfd7638bc708b98261ca58e84"),
    id_field="key",
    fields=("key", "prompt", "instruction_id_list", "kwargs"),
    lists=("instruction_id_list", "kwargs"),
    write_prompt=write_prompt,
    graders={mode: partial(grade, mode=mode) for mode in ("strict", "loose")},
    find_flaw=find_flaw,
    max_new_tokens=1280,
    cue="\n\n",
)
