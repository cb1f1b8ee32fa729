"""Every page of the repository: what it tells a reader to type, open or import is there.

Nothing is decoded here. The command line itself parses each command, so an option that was renamed, a table
or a policy that does not exist, or a value of the wrong kind is found; links with their anchors, files, make
targets, scripts with their options and dotted names are looked up. A test names all that is wrong anywhere.
"""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from orderlens.analysis import table_names
from orderlens.cli.command import request_of
from orderlens.cli.main import GROUPS, VERBS, load_verb
from orderlens.errors import UserInputError
from orderlens.figures import figure_names
from orderlens.rules import parse_policy
from orderlens.runs.request import options
from orderlens.tasks import task_names
from support.surface import names as names_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("", "docs/**/", "design/", "benchmarks/", "src/orderlens/models/data/*/")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted(ROOT.glob(f"{folder}*.md"))
}
PRESENT = sorted(set(PAGES) - {"CHANGELOG.md"})
"""Pages that speak of what is; the changelog also speaks of what was."""
CODE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
OPTION = re.compile(r"(?<!\S)--[a-z][\w-]*")
FILE = re.compile(r"(?:[a-z_]\w*/)+[\w.-]+\.(?:py|md|sh|json|jsonl|csv|toml|txt|svg|png)")
ROOMS = ("", "src/orderlens/", "src/orderlens/models/decoder/")
"""Where a path in running text may start, besides the page's own folder."""
ELSEWHERE = {"models/dit.py", "model/transformer.py"}
"""Files of published code that pages speak of."""

OTHERS = {"--num_fewshot", "--apply_chat_template", "--gen_kwargs", "--dllm-algorithm", "--wide"}
"""Options of lm-eval, of SGLang, and one that a benchmark had when a figure was made."""


def lines_of(page: str) -> list[str]:
    """Return the lines of all code blocks, continued ones joined, prompts off."""
    text = "".join(body for _, body in CODE.findall(PAGES[page]))
    return re.sub(r"^\$ ", "", re.sub(r"\s*\\\n\s*", " ", text), flags=re.MULTILINE).splitlines()


def spans(page: str) -> list[str]:
    """Return what stands in backticks outside code blocks."""
    return [" ".join(span.split()) for span in INLINE.findall(CODE.sub("", PAGES[page]))]


def typed(lines: list[str]) -> Iterator[str]:
    """Yield what follows ``orderlens`` in these lines, command by command."""
    for line in lines:
        for command in re.findall(r"(?:^|[;&] |^srun )orderlens ([^;&|]*)", line):
            yield re.split(r"\s#", command)[0].strip()


def verb_of(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of the verb that these words begin with ("" if none), and what follows it."""
    for count in (2, 1):
        if " ".join(words[:count]) in VERBS:
            return " ".join(words[:count]), words[count:]
    return "", words


def flags_of(verb: str) -> set[str]:
    """Return the options of a verb as they are typed."""
    return {
        flag for item in options(load_verb(verb).kind) for name in names_of(item) for flag in name.split("/")
    }


def listed(value: object) -> set[str]:
    """Return the names in a comma-separated option, given once or several times."""
    values = value if isinstance(value, list | tuple) else [value] if value else []
    return {name for item in values for name in str(item).split(",")} - {"none", "…"}


def shown_plugins(page: str) -> set[str]:
    """Return names that the page itself registers (its blocks for ``pyproject.toml``)."""
    blocks = "".join(body for language, body in CODE.findall(PAGES[page]) if language == "toml")
    return set(re.findall(r'^([\w-]+) = "\w+[.:]', blocks, flags=re.MULTILINE))


def flaw(line: str, own: set[str]) -> str:
    """Return what the command line would refuse in this command before it does anything."""
    name, words = verb_of(shlex.split(line))
    if not name or "--help" in words:
        return (
            "" if not words or words[0] in (*GROUPS, "--help", "--version") else f"no such verb: {words[0]}"
        )
    verb = load_verb(name)
    try:
        request = vars(request_of(verb, [word for word in words if word != "--debug"]))
        for policy in listed(request.get("orders")) | listed(request.get("policies")):
            is_written = ":runs/" in str(policy)  # a file that another command of the page writes
            if not is_written and not own & set(re.split(r"[+:=]", str(policy))):
                parse_policy(policy)
    except UserInputError as error:
        return str(error)
    if verb.loose:
        return ""
    known = {"figure": figure_names(), "tasks": task_names()}
    if name == "analyze":
        known["table"] = table_names()
    return ", ".join(
        set().union(*(listed(request.get(key)) - {*names, *own} for key, names in known.items()))
    )


def test_commands_are_understood() -> None:
    wrong = [
        (page, line, why)
        for page in PAGES
        for line in typed(lines_of(page))
        if (why := flaw(line, shown_plugins(page)))
    ]
    assert not wrong
    assert sum(len(list(typed(lines_of(page)))) for page in PAGES) > 100, "the commands are found"


def test_options_in_running_text_exist() -> None:
    """Of the verb that stands before them, with or without ``orderlens``."""
    wrong = []
    for page in PRESENT:
        for span in spans(page):
            words = re.sub(r"[\[\]…]", " ", span.removeprefix("orderlens ")).split()
            name, rest = verb_of(words)
            if not name or load_verb(name).loose:
                continue
            if not set(OPTION.findall(" ".join(rest))) <= flags_of(name) | {"--help", "--debug"}:
                wrong.append((page, span))
    assert not wrong


def test_options_by_themselves_exist() -> None:
    """An option in backticks without its verb is one of some verb, benchmark or recipe."""
    scripts = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "recipes").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in scripts)
    known = {*re.findall(r"--[a-z][\w-]*", code), *OTHERS, "--debug", "--help", "--version"}
    known |= {flag for name in VERBS for flag in flags_of(name)}
    alone = [(page, span) for page in PRESENT for span in spans(page) if span.startswith("--")]
    assert not [(page, span) for page, span in alone if not set(OPTION.findall(span)) <= known]
    assert len(alone) > 100, "the options are found"


def test_extras_and_variables_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "".join(PAGES[page] for page in PRESENT)
    extras = {
        name for found in re.findall(r"(?:orderlens|'\.)\[([\w,]+)\]'", text) for name in found.split(",")
    }
    assert {"torch", "eval"} <= extras <= set(project["optional-dependencies"])
    code = "".join(
        path.read_text(encoding="utf-8") for room in ("src", "tests") for path in (ROOT / room).rglob("*.py")
    )
    assert not [name for name in set(re.findall(r"\bORDERLENS_\w+", text)) if f'"{name}"' not in code]


def test_scripts_and_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets, wrong = set(re.findall(r"^(\w+):", makefile, flags=re.MULTILINE)), []
    for page in PRESENT:
        for line in [text.split(" #")[0] for text in lines_of(page) + spans(page)]:
            wrong += [(page, name) for name in re.findall(r"^make (\w+)", line) if name not in targets]
            for script, rest in re.findall(r"\b((?:recipes|benchmarks)/\w+\.(?:py|sh))\b(.*)", line):
                wrong += [(page, line, item) for item in OPTION.findall(rest) if not takes(script, item)]
    assert not wrong


@cache
def takes(script: str, option: str) -> bool:
    """Say whether a script names the option, or (typer) a parameter from which it follows."""
    text = (ROOT / script).read_text(encoding="utf-8")
    return f'"{option}"' in text or bool(re.search(rf"\b{option[2:].replace('-', '_')}: ", text))


def test_files_and_names_in_running_text_exist() -> None:
    wrong = []
    for page in PRESENT:
        for span in spans(page):
            rooms = [ROOT / room / span for room in (*ROOMS, Path(page).parent)]
            if FILE.fullmatch(span) and span not in ELSEWHERE and not any(path.is_file() for path in rooms):
                wrong.append((page, span))
            dotted = re.match(r"(?:orderlens|ol)(?:\.\w+)+", span)
            if dotted and not is_name(re.sub(r"^ol\.", "orderlens.", dotted.group())):
                wrong.append((page, span))
    assert not wrong


@cache
def entry_point_groups() -> set[str]:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "orderlens").rglob("*.py"))
    return set(re.findall(r'entry_point_group="([\w.]+)"', code))


@cache
def is_name(dotted: str) -> bool:
    """Say whether this is a module, something in one, or a group of entry points."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found is not None or dotted in entry_point_groups()
    return False


def anchor(heading: str) -> str:
    """Return the place that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def path_exists(page: str, target: str) -> bool:
    path, _, place = target.partition("#")
    there = ((ROOT / page).parent / path if path else ROOT / page).resolve()
    if not there.exists():
        return False
    other = PAGES.get(there.relative_to(ROOT).as_posix())
    if not place or other is None:
        return True
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", other), flags=re.MULTILINE)
    return place in {anchor(heading) for heading in headings}


def test_links_lead_to_a_file_and_to_a_place_in_it() -> None:
    links = [
        (page, target)
        for page, text in PAGES.items()
        for target in re.findall(r"\]\(([^)\s]+)\)", INLINE.sub("", CODE.sub("", text)))
        if "://" not in target
    ]
    assert not [link for link in links if not path_exists(*link)]
    assert len(links) > 200, "the links are found"
