"""Finds wording that the style rules replace, and sentences that are too long.

Reads prose only: comments, docstrings and other strings of Python and TypeScript, Markdown outside code, and
templates. Uses the standard library alone, and does not import orderlens.

    python design/words.py [PATH ...]      # one line per place; all of the project without PATH
    python design/words.py --count         # places per turn of phrase and folder
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "design",
    "docs",
    "src",
    "frontend/src",
    "benchmarks",
    "recipes",
)
SKIPPED = (
    "benchmarks/notebook",
    "design/words.py",
    "src/orderlens/tasks/data",
    "src/orderlens/models/data",
    "recipes/bundled_tasks/",
    "recipes/smol_words.py",
)
LISTED = ("CHANGELOG.md", "docs/results/tiny.md", "docs/results/smol.md", "docs/python.md")
"""Lists and printed results, in which a colon or semicolon may end a sentence, as in messages."""
LONGEST_SENTENCE = 30

_NUMBER_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|forty|fifty|hundred|thousand|[0-9]"
)
TURNS = {
    "is no": r"(?<!there )\b(?:is|are|was|were|be) no\b(?! longer| more| less| fewer| later)",
    "so many": r"\b(?:so|as) many\b(?! more)",
    "alike": r"\balike\b",
    "nobody": r"\b(?:whoever|whatever|somebody|nobody|everybody|who computes)\b",
    "stands": r"\b(?:stands(?! for)|stand (?:in|beside|behind|next)|stood)\b",
    "told": r"\b(?:speaks? (?:about|of)|know(?:s|ing)? nothing|told|hears? of)\b",
    "behind": r"\b(?:behind|(?<!look-)(?<!look )ahead|beside|in turn|at hand)\b",
    "of its own": r"\b(?:by itself alone|of (?:its|their|your|our|his) own|for nothing)\b",
    "makes": r"\b(?:rounding (?:alone )?makes|runs? makes?|makes? (?:rows|about [0-9]|[0-9]))\b",
    "leading zero": r"(?:(?<=[\s(−±<>=≈~,–-])|^)\.\d+(?![\w.])",
    "at once": r"\b(?:one by one|at once|(?:reveal|commit|decode)\w* together|together in (?:one|a) pass)\b",
    "some three": rf"\bsome (?:{_NUMBER_WORDS})",
    "it is right": r"\bit is right\b",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in TURNS.items()}


class Place(NamedTuple):
    """One finding: file relative to the project, line (from 1), the turn's name, and the text around it."""

    path: str
    line: int
    turn: str
    text: str


class Prose(NamedTuple):
    """Prose that begins in ``line``; ``message`` marks what a user reads, not comments and docstrings."""

    line: int
    text: str
    message: bool


def places(root: Path = ROOT, paths: tuple[str, ...] = PLACES) -> list[Place]:
    """All findings in the project's prose, in the order of files and lines."""
    found: list[Place] = []
    for path in _files(root, paths):
        name = path.relative_to(root).as_posix()
        for prose in _prose(path):
            found += _in_prose(name, prose)
    return found


def _in_prose(name: str, prose: Prose) -> Iterator[Place]:
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", prose.text)
    flat = text.replace("\n", " ")  # a turn may be split between two lines
    for turn, pattern in _PATTERNS.items():
        for match in pattern.finditer(flat):
            line = prose.line + text.count("\n", 0, match.start())
            yield Place(name, line, turn, _around(flat, match.start()))
    if prose.message:
        is_page = name.endswith(".md") and name not in LISTED and not name.endswith("/results.md")
        for sentence in _sentences(prose.text, ".!?" if is_page else ".!?:;"):
            if (words := len(sentence.split())) > LONGEST_SENTENCE:
                yield Place(name, prose.line, f"{words} words", sentence[:100])


def _around(line: str, start: int) -> str:
    return line[max(0, start - 40) : start + 60].strip()


def _files(root: Path, paths: tuple[str, ...]) -> Iterator[Path]:
    for entry in paths:
        place = (root / entry).resolve()
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            name = path.relative_to(root).as_posix()
            if path.suffix in _READERS and path.is_file() and not name.startswith(SKIPPED):
                yield path


def _prose(path: Path) -> Iterator[Prose]:
    return _READERS[path.suffix](path.read_text(encoding="utf-8"))


def _python(source: str) -> Iterator[Prose]:
    docstrings, parts, start = _docstring_lines(source), list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _STRINGS:  # from Python 3.12 on, an f-string is several tokens
            start = start if parts else token.start[0]
            parts.append(re.sub(r"^[a-zA-Z]{0,2}(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string))
        elif token.type == tokenize.COMMENT:
            yield Prose(token.start[0], token.string.lstrip("# "), message=False)
        elif token.type != tokenize.NL and parts:
            if " " in (text := "".join(parts)):
                yield Prose(start, text, message=start not in docstrings)
            parts = []


def _docstring_lines(source: str) -> set[int]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and node.body and isinstance(first := node.body[0], ast.Expr):
            lines.add(first.lineno)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.add(node.lineno)
    return lines


def _typescript(source: str) -> Iterator[Prose]:
    for number, line in enumerate(source.split("\n"), 1):
        for part in re.findall(r"//(.*)|/\*+(.*)|^\s*\*(.*)|\"([^\"]*)\"|`([^`]*)`", line):
            yield Prose(number, " ".join(part), message=False)


def _markdown(source: str) -> Iterator[Prose]:
    """Paragraphs, list items and table rows; fenced blocks, inline code and link targets are left out."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", _blank, source, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    start, lines = 1, []
    for number, line in enumerate(text.split("\n"), 1):
        begins_anew = not line.strip() or re.match(r"\s*([-*|>#]|\d+\.) ?", line)
        if begins_anew and lines:
            yield Prose(start, "\n".join(lines), message=not lines[0].lstrip().startswith("|"))
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line)
    if lines:
        yield Prose(start, "\n".join(lines), message=not lines[0].lstrip().startswith("|"))


def _template(source: str) -> Iterator[Prose]:
    text = re.sub(r"<(style|script)\b.*?</\1>", _blank, source, flags=re.DOTALL)
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}|<[^>]*>", _blank, text, flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        yield Prose(number, line, message=False)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def _toml(source: str) -> Iterator[Prose]:
    for text in _strings(tomllib.loads(source)):
        yield Prose(1 + source.count("\n", 0, max(0, source.find(text[:20]))), text, message=True)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _sentences(text: str, ends: str) -> list[str]:
    return re.split(rf"(?<=[{ends}])[\"')*_]*\s+", " ".join(text.split()))


_READERS = {".py": _python, ".ts": _typescript, ".md": _markdown, ".j2": _template, ".toml": _toml}
_STRINGS = {
    kind
    for kind, name in tokenize.tok_name.items()
    if name in ("STRING", "FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
}


def main() -> None:
    """Print the findings, or their counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--count", action="store_true")
    chosen = parser.parse_args()
    found = places(paths=tuple(chosen.paths) or PLACES)
    if chosen.count:
        kinds = Counter("long sentence" if "words" in place.turn else place.turn for place in found)
        folders = Counter("/".join(place.path.split("/")[:3]) for place in found)
        print("\n".join(f"{count:5}  {name}" for name, count in (kinds + folders).most_common()))
    else:
        print("\n".join(f"{place.path}:{place.line}: [{place.turn}] {place.text}" for place in found))
    print(f"{len(found)} places")


if __name__ == "__main__":
    main()
