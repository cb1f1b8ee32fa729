"""Measure the package: rooms, layers, files, lines, files entered per verb, options, class names, manual.

``python design/house.py`` prints a table, ``--json`` one JSON object, ``--draw`` writes ``design/rooms.svg``.
Rooms and layers come from the import contract in ``pyproject.toml``, so the picture shows what is enforced.
Reads sources as text; imports the package only in the processes that count files entered.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "orderlens"
FRONT_DOOR = ("__main__", "_version", "api", "errors", "registry", "testing")
"""Entries of the contract that do not count as rooms."""

VERBS = {
    "score": "score --model hmm --limit 2 --orders forced-ar,random --out {folder}/score",
    "generate": "generate --model hmm --limit 2 --orders random --max-new-tokens 32 --out {folder}/generate",
    "analyze": "analyze {folder}/score",
    "report": "report {folder}/score --out {folder}/report.html",
    "replicate": "replicate --model hmm --preset demo --limit 2 --out {folder}/replicate",
}
"""The commands whose way is counted, in this order: ``analyze`` and ``report`` read the run of ``score``."""


@cache
def layers() -> list[list[str]]:
    """Return the layers of the import contract, highest first, each with its names."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = content["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [re.split(r"\s*[|:]\s*", line) for line in found]


def rooms() -> list[str]:
    """Return the names of the rooms, highest layer first."""
    return [name for layer in layers() for name in layer if name not in FRONT_DOOR]


def sources() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def code_lines(path: Path) -> int:
    """Return how many lines hold code: not blank, not only a comment, not a docstring."""
    text = path.read_text(encoding="utf-8")
    texts: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    rows = enumerate(text.splitlines(), 1)
    return sum(bool(row.strip()) and not row.lstrip().startswith("#") and n not in texts for n, row in rows)


def bodies() -> list[int]:
    """Return the number of code lines of every function body, smallest first."""
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1:] if ast.get_docstring(node) is not None else node.body
                found.append((node.end_lineno or 0) - first[0].lineno + 1 if first else 0)
    return sorted(found)


def class_names_twice() -> list[str]:
    """Return the public class names that more than one module defines."""
    names = Counter(
        node.name
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def command_parameters() -> int:
    """Return how many parameters all verbs together take, shared ones counted per verb."""
    surface = json.loads((ROOT / "tests" / "cli" / "surface.json").read_text(encoding="utf-8"))
    return sum(len(parameters) for parameters in surface.values())


def options_twice() -> list[str]:
    """Return the options whose definition (an annotated field with help) is written more than once."""
    places: dict[str, set[str]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and "Opt(" in ast.unparse(node.annotation):
                places.setdefault(ast.unparse(node.target), set()).add(ast.unparse(node.annotation))
    return sorted(name for name, found in places.items() if len(found) > 1)


def manual() -> list[Path]:
    """Return the pages of the manual: everything under docs but results and the generated reference."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in pages if not page.relative_to(ROOT / "docs").as_posix().startswith("results")]


def words(pages: Sequence[Path]) -> int:
    """Return the number of words of pages; code blocks and the lines of tables (``|``) do not count."""
    plain = (re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL) for page in pages)
    return sum(len(re.findall(r"\S*\w\S*", text)) for text in plain)


ENTERED = """
import json, sys, threading
from pathlib import Path
home, entered, seen = sys.argv[1], set(), {}
def imported(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
def profile(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    if code in seen:
        return
    file = code.co_filename
    if not file.startswith(home) or not code.co_flags & 1:
        seen[code] = False
    elif file not in entered and not imported(frame):
        entered.add(file)
from orderlens.cli.main import entry_point
sys.argv = ["orderlens", *sys.argv[3:]]
threading.setprofile(profile)
sys.setprofile(profile)
try:
    entry_point()
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
    Path(OUT).write_text(json.dumps(sorted(entered)))
"""


def files_entered() -> dict[str, int]:
    """Return per verb how many files of the package have a function that runs; imports do not count."""
    return {verb: len(files) for verb, files in ways(VERBS)}


def ways(verbs: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each verb with the files that its small run enters, relative to the package."""
    with tempfile.TemporaryDirectory() as folder:
        for verb, command in verbs.items():
            out = Path(folder) / f"{verb}.json"
            script = f"OUT = {str(out)!r}\n{ENTERED}"
            arguments = [part.format(folder=folder) for part in command.split()]
            done = subprocess.run(
                [sys.executable, "-c", script, str(SOURCE), "--", *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},  # not an installed package
            )
            if done.returncode:
                raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1:]}")
            yield verb, [str(Path(name).relative_to(SOURCE)) for name in json.loads(out.read_text())]


def measure() -> dict[str, Any]:
    """Return all yardsticks; the names of INTERFACE come first."""
    files = sources()
    lengths = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    inside, pages = bodies(), manual()
    code = sum(map(code_lines, files))
    tests = sum(map(code_lines, (ROOT / "tests").rglob("*.py")))
    return {
        "rooms": len(rooms()),
        "layers": len(layers()),
        "files": len(files),
        "lines": sum(lengths),
        "code_lines": code,
        "files_entered": files_entered(),
        "cli_parameters": command_parameters(),
        "manual_pages": len(pages),
        "manual_words": words(pages),
        "files_under_100_lines": sum(length < 100 for length in lengths),
        "median_file": lengths[len(lengths) // 2],
        "longest_file": lengths[-1],
        "body_p90": inside[int(0.9 * len(inside))],
        "tests_per_code": round(tests / code, 2),
        "options_twice": options_twice(),
        "class_names_twice": class_names_twice(),
    }


def draw() -> str:
    """Return the picture of rooms and layers as SVG, made from the contract."""
    high, wide, gap = 44, 860, 10
    parts, top = [], 10
    for names in layers():
        shown = [name for name in names if not name.startswith("_")]
        width = (wide - 20 - gap * (len(shown) - 1)) / len(shown)
        for place, name in enumerate(shown):
            left = 10 + place * (width + gap)
            kind = "door" if name in FRONT_DOOR else "room"
            box = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{high - gap}" rx="6"'
            parts.append(f'<rect class="{kind}" {box}/>')
            parts.append(f'<text x="{left + width / 2:.1f}" y="{top + 22}">{name}</text>')
        top += high
    style = (
        "rect{stroke:#5c6bc0;stroke-width:1.2}.room{fill:#e8eaf6}.door{fill:#fff}"
        "text{font:14px sans-serif;text-anchor:middle;fill:#1a237e}"
    )
    title = "Rooms by layer: each may import from the rows below it"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {top}" role="img" aria-label="{title}">'
        f"<title>{title}</title><style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    """Print the yardsticks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--draw", action="store_true", help="write design/rooms.svg")
    parser.add_argument("--way", choices=VERBS, help="list the files that one verb enters")
    given = parser.parse_args()
    if given.draw:
        (ROOT / "design" / "rooms.svg").write_text(draw(), encoding="utf-8")
    elif given.way:
        needed = {verb: VERBS[verb] for verb in VERBS if verb in ("score", given.way)}
        print("\n".join(dict(ways(needed))[given.way]))
    elif given.json:
        print(json.dumps(measure()))
    else:
        for name, value in measure().items():
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            shown = f"{len(shown)}: {', '.join(shown)}" if isinstance(shown, list) else shown
            print(f"{name.replace('_', ' '):24}{shown}")


if __name__ == "__main__":
    main()
