"""Hostile command lines end with 0, 1 or 2 and one line, and never cost anybody a file.

Quick valid commands with some values replaced, run in this process. The options are found by asking the
application, so a new one is fuzzed as soon as it exists. ORDERLENS_FUZZ sets the number of command lines,
ORDERLENS_PROPERTIES=search looks for new ones, and ORDERLENS_FUZZ_LOG=FILE keeps how they ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orderlens as ol
from orderlens.cli.main import VERBS, main
from support.surface import surface

SURFACE = surface()
EXAMPLES = int(os.environ.get("ORDERLENS_FUZZ", "60"))
HANGS_S = 120
"""A command that takes longer than this, even on a busy machine, computes what it should have refused."""

NUMBERS = (
    "0", "-1", "1", "2", "1.5", "nan", "inf", "-inf", "1e309", "1e-400", "", "abc", "1_0", "٣", "0x10",
    "1e18", str(10**13), str(2**63), str(-(2**63)), str(10**30), "9" * 400,
)  # fmt: skip
TEXTS = (
    "", " ", ",", ",,", "nan", "-1", "0", "1e400", "x" * 300, "a/b", "../..", "~nobody/x", "{}", "%s", "(",
    "[red]x[/]", "\x1b[31mred", "\x1b]8;;http://e\x1b\\", "a\rb", "a\nb", "\u202eabc", "\udc80", "a\x00b",
    "💥", "ＡＢ", "--help-me", "*", "random:" + "9" * 40, "random:-1", "random:x", "random:", "score", "all",
    "max-prob:select=", "forced-ar,forced-ar", "hmm:block=0", "hmm:block=999999999999", "hmm:seed=-1",
    "hmm:seed=" + "9" * 30, "hmm:x=y", "hmm:incoherence=nan", "hf:", "hf:a", "hf:a/b@", "hf:a/b", "tiny-ar",
    "tiny:x", "passages", "arith=", "=x", "arith=missing.jsonl", "csv", "svg,xyz", "s3://nowhere/x",
    "file:///etc/passwd", "http://127.0.0.1:1/x", "/dev/null", "/proc/self/mem", "/etc/passwd/x", "cuda:99",
    "meta", "float7", "0,0", "0,nan", "1e-310", "null",
)  # fmt: skip

LONG = {
    ("theory curve", "--figures"),
    ("evaluate", "--limit"),
    ("downstream", "--out"),
    ("train", "--steps"),
    ("train", "--max-minutes"),
}
"""Options with which a valid command takes minutes."""


@dataclass
class Stage:
    """Files that commands may use, what must be the same afterwards, and how the commands ended."""

    root: Path
    count: int = 0
    protected: dict[Path, str] = field(default_factory=dict)
    endings: Counter[tuple[str, int]] = field(default_factory=Counter)

    def protect(self) -> None:
        """Remember every file that is there."""
        files = [path for path in sorted(self.root.rglob("*")) if path.is_file()]
        self.protected = {path: _digest(path) for path in files}

    def lost(self) -> list[Path]:
        """Return the files that are gone or changed."""
        return [p for p, digest in self.protected.items() if not p.is_file() or _digest(p) != digest]

    def fresh(self) -> str:
        """Return a new place to write to."""
        self.count += 1
        (self.root / "out").mkdir(exist_ok=True)  # a single file is not given a folder
        return str(self.root / "out" / str(self.count))

    def command(self, verb: str) -> list[str]:
        """Return a quick valid command."""
        copied = verb in ("runs compact", "runs verify")
        run = shutil.copytree(self.root / "run", self.fresh()) if copied else self.root / "run"
        files = {"data": "data.jsonl", "traces": "traces.csv", "text": "text.txt", "graded": "graded"}
        files["foreign"] = "foreign.csv"
        known = {name: self.root / file for name, file in files.items()}
        words = COMMANDS[verb].format(out=self.fresh(), run=run, **known)
        return [*verb.split(), *shlex.split(words)]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_DECODE = "--model hmm:block=8 --data {data} --orders forced-ar,max-prob --limit 2 --prefix-tokens 4 "
COMMANDS = {
    "score": _DECODE + "--target-tokens 6 -o {out}",
    "generate": _DECODE + "--max-new-tokens 6 -o {out}",
    "sweep": _DECODE + "--max-new-tokens 6 --temperatures 0,1 -o {out}",
    "evaluate": "--tasks arith --model hmm:block=8 --orders forced-ar --limit 1 --max-new-tokens 8 -o {out}",
    "analyze": "{run} --bootstrap 5 --table fixed-sequence",
    "figures": "{run} --figure lorenz --format svg -o {out}",
    "downstream": "{graded} --bootstrap 5",
    "train": "--data {text} --steps 1 --layers 1 --width 16 --heads 1 --vocab-size 300 --window 32 "
    "--block-size 8 --batch-size 2 --device cpu -o {out}",
    "replicate": "--preset demo --model hmm:block=8 --data {data} --limit 1 --stages score -o {out}",
    "frontier": "--model hmm:block=8 --data {data} --policies forced-ar+top=2 --rungs 1,2 --limit 1 "
    "--prefix-tokens 4 --target-tokens 6 --parts likelihood -o {out}",
    "census": _DECODE + "--target-tokens 6 --span 3 -o {out}",
    "report": "{run} --bootstrap 5 --samples 1 -o {out}.html",
    "view": "{run} --no-browser",
    "demo": "-o {out}",
    "lm-eval": "--tasks arc_easy --model hmm:block=8 -o {out}",
    "models get": "smol --file {traces}",
    "runs import": "{foreign} -o {out}",
    "runs watch": "{run} --once",
    "runs diff": "{run} {run}",
    "theory check": "",
    "doctor": "",
    "orders": "",
    "models": "",
    "tasks": "",
    "runs list": "{run}",
    "runs show": "{run}",
    "runs verify": "{run}",
    "runs export": "{run} -o {out}.csv",
    "runs compact": "{run}",
    "theory sigma0": "",
    "theory curve": "--points 3",
    "theory profile": "{traces}",
    "theory fit": "{run}",
}
"""Verb → the rest of a quick valid command; see ``quick`` for the parts that are left out."""
REFUSED = ("models get",)
"""Verbs whose valid command needs files that the tests do not have."""


def quick(patch: pytest.MonkeyPatch) -> None:
    """Leave out what takes minutes or needs another package: serving, the demo's study, lm-eval's run."""
    uvicorn = pytest.importorskip("uvicorn")

    def close(_server: object, sockets: Sequence[socket.socket]) -> None:
        for item in sockets:
            item.close()

    patch.setattr(uvicorn.Server, "run", close)
    patch.setattr("orderlens.cli.demo.run_plan", lambda *_, **__: None)
    patch.setattr("orderlens.cli.lm_eval.launch", lambda *_, **__: None)
    patch.setattr("orderlens.claims.audit.check_claims", lambda *_, **__: [])


def options(verb: str) -> list[tuple[tuple[str, ...], bool]]:
    """Return the options of a verb: their spellings, and whether they take numbers; flags are left out."""
    valued = [item for item in SURFACE[verb] if item["names"][0].startswith("-") and item["type"] != "bool"]
    kept = [item for item in valued if (verb, item["names"][0]) not in LONG]
    return [(tuple(item["names"]), item["type"] in ("int", "float")) for item in kept]


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    arguments: Sequence[str]
    code: int
    out: str
    err: str

    def complaints(self) -> Iterator[str]:
        """Yield what no command line may lead to."""
        if self.code not in (0, 1, 2):
            yield f"exit code {self.code}"
        if "Traceback" in self.err + self.out:
            yield "a traceback"
        if "internal error" in self.err:
            yield "an unforeseen error"
        lines = [line for line in self.err.splitlines() if line.startswith("orderlens: ")]
        errors = [line for line in lines if not line.startswith("orderlens: warning: ")]
        found_damage = self.code == 1 and self.arguments[:2] == ["runs", "verify"]
        if len(errors) != (self.code != 0) and not found_damage:
            yield f"{len(errors)} lines of error"
        if any(letter in self.err + self.out for letter in "\x1b\x00\r\x9b\u202e"):
            yield "raw control characters"


def replaced(command: Sequence[str], changes: Mapping[tuple[str, ...], str]) -> list[str]:
    """Return the command with options set to other values."""
    words = list(command)
    for spellings, value in changes.items():
        place = next((words.index(name) for name in spellings if name in words), None)
        if place is None:
            words += [spellings[0], value]
        else:
            words[place + 1] = value
    return words


def run(arguments: Sequence[str]) -> Outcome:
    """Run a command in this process; one that hangs is stopped."""
    raw = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(item, encoding="utf-8", write_through=True) for item in raw)
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(HANGS_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(arguments, code, *(item.getvalue().decode("utf-8") for item in raw))


class Hangs(BaseException):
    """The command takes too long; no handler of ours may mistake this for anything else."""


def _too_long(*_: object) -> None:
    raise Hangs(f"the command took more than {HANGS_S} s")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("fuzz")
    text = "the quick brown fox jumps over the lazy dog and then it sleeps in the sun. "
    rows = [json.dumps({"id": f"d{i}", "text": text * 2}) for i in range(3)]
    (root / "data.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (root / "traces.csv").write_text("sample_id,step,logq\na,0,-0.5\na,1,-1.5\nb,0,-0.1\n", encoding="utf-8")
    foreign = "sample_id,order,step,logq\na,left,0,-0.5\na,left,1,-1.5\nb,left,0,-0.1\n"
    (root / "foreign.csv").write_text(foreign, encoding="utf-8")
    (root / "text.txt").write_text(text * 60, encoding="utf-8")
    samples = [ol.Sample(str(i), [1, 2, 3], [4, 5, 6, 7 + i]) for i in range(4)]
    ol.score("hmm:block=8", samples, ["forced-ar", "random", "oracle-max-q"], out=root / "run")
    graded = "--tasks arith --model hmm:block=8 --orders forced-ar,random --limit 3 --max-new-tokens 8"
    assert run(["evaluate", *graded.split(), "-o", str(root / "graded")]).code == 0
    place, before = Stage(root), Path.cwd()
    place.protect()
    (root / "here").mkdir()
    os.chdir(root / "here")  # relative names that are drawn must not land in the repository
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        yield place
    os.chdir(before)
    if log := os.environ.get("ORDERLENS_FUZZ_LOG"):
        codes = Counter(code for _, code in place.endings.elements())
        lines = [f"{verb}: exit {code}: {count}" for (verb, code), count in sorted(place.endings.items())]
        Path(log).write_text("\n".join([*lines, f"all: {dict(codes)}"]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_valid_command_works(stage, verb):
    outcome = run(stage.command(verb))
    assert outcome.code == (2 if verb in REFUSED else 0), outcome.err
    assert not stage.lost()


def test_every_verb_is_covered():
    assert set(COMMANDS) == set(VERBS)


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(data=st.data())
def test_hostile_values_are_used_or_refused(stage, data):
    verb = data.draw(st.sampled_from(list(COMMANDS)), label="verb")
    known = options(verb)
    changes = {}
    if known:
        for spellings, is_number in data.draw(
            st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)
        ):
            numbers = st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats().map(str)
            odd = numbers if is_number else st.sampled_from(TEXTS) | st.text(max_size=12)
            changes[spellings] = data.draw(odd, label=spellings[0])
    outcome = run(replaced(stage.command(verb), changes))
    stage.endings[verb, outcome.code] += 1
    assert not list(outcome.complaints()), (list(outcome.complaints()), outcome)
    assert not stage.lost()
