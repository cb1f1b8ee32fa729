"""The MkDocs hook: adds pages whose text is outside ``docs/``, and the list of commands.

Contributing, changelog, design notes and measurements have their usual places in the repository, and appear
in the site under the names below. The list of commands is generated from the command line and appended to its
page. Links to source files, which have no page, become plain text. Column heads that the glossary explains
become links to it.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = "command-line.md"
PICTURE = "design/rooms.svg"
ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "measurements.md",
    **{f"design/{path.name}": f"design/{path.name}" for path in sorted((ROOT / "design").glob("*.md"))},
}
"""File in the repository → page of the site."""
GENERATED = tuple(ELSEWHERE.values())
GLOSSARY = "glossary.md"
_HEAD = re.compile(r"^(\|.*\|)[ ]*\n(?=\|[ :|-]+\|[ ]*$)", re.MULTILINE)
_FENCED = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages (called by MkDocs)."""
    from mkdocs.structure.files import File

    for source, page in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relink(text, source, page)))
    files.append(File.generated(config, PICTURE, content=(ROOT / PICTURE).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fix and add links, and append the list of commands (called by MkDocs)."""
    path: str = page.file.src_uri
    relinked = markdown if path in GENERATED else relink(markdown, f"docs/{path}", path)
    explained = relinked if path == GLOSSARY else explain_heads(relinked, path)
    return explained + commands_page() if path == COMMANDS else explained


def explain_heads(text: str, page: str) -> str:
    """Return Markdown whose column heads link to the glossary, in tables with two known heads or more."""
    glossary = posixpath.relpath(GLOSSARY, posixpath.dirname(page) or ".")

    def linked(match: re.Match[str]) -> str:
        heads = [head.strip() for head in re.split(r"(?<!\\)\|", match.group(1))[1:-1]]
        anchors = [_anchors().get(_plain(head)) for head in heads]
        if len(set(filter(None, anchors))) < 2:  # "path" and "value" alone mean many things
            return match.group(0)
        cells = (f"[{h}]({glossary}#{a})" if a else h for h, a in zip(heads, anchors, strict=True))
        return f"| {' | '.join(cells)} |\n"

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _HEAD.sub(linked, part) for part in parts)


def _plain(head: str) -> str:
    """Return a column head without code marks, units, the paper's mark and the word "content"."""
    bare = re.sub(r"\(.*?\)|: paper$| %$|^content ", "", head.strip("` ").lower())
    return bare.strip()


@cache
def _anchors() -> dict[str, str]:
    """Return term or column name (lower case) → its heading, unless tables differ in its meaning."""
    from orderlens.analysis.glossary import entries

    own = {column.rpartition(":")[2] for item in entries() for column in item.columns if ":" in column}
    found = ((name, item.anchor) for item in entries() for name in (*item.columns, item.term))
    return {name.lower(): anchor for name, anchor in found if ":" not in name and name not in own}


def relink(text: str, source: str, page: str) -> str:
    """Return Markdown whose relative links name pages of the site.

    Args:
        text: Markdown from the repository.
        source: its path in the repository.
        page: its path in the site.
    """

    def relinked(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match.group(0)
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = ELSEWHERE.get(there, there.removeprefix("docs/") if there.startswith("docs/") else None)
        if name is None:
            return label
        found = posixpath.relpath(name, posixpath.dirname(page) or ".")
        return f"[{label}]({found}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("`") else _LINK.sub(relinked, part) for part in parts)


def commands_page() -> str:
    """Return every verb with its options, in the words of ``--help``."""
    from orderlens.cli.command import default_of, label
    from orderlens.cli.main import VERBS, load_verb
    from orderlens.common.templating import fill
    from orderlens.runs.request import options

    verbs = [
        {
            "name": f"orderlens {name}",
            "summary": load_verb(name).summary,
            "rows": [
                {
                    "names": f"`{label(item)}`",
                    "help": item.opt.help,
                    "default": default_of(item).strip(" []").removeprefix("default: "),
                }
                for item in options(load_verb(name).kind)
            ],
        }
        for name in VERBS
    ]
    return fill("commands.md.j2", verbs=verbs)
