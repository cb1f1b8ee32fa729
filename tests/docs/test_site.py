"""The site builds without a warning, and its pages ask the network for nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("material", reason="needs the docs extra")
pytest.importorskip("mkdocstrings", reason="needs the docs extra")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site: Path) -> dict[str, str]:
    return {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    fetching = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=\"?(https?:)?//[^>]*>")
    for name, text in pages(site).items():
        found = [tag.group(0) for tag in fetching.finditer(text) if 'rel="canonical"' not in tag.group(0)]
        assert not found, (name, found[:3])
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\(\"?https?:|@import", styles)


def test_links_lead_to_a_page_and_to_a_place_on_it(site: Path) -> None:
    found = pages(site)
    places = {name: set(re.findall(r"\bid=\"?([^\s\">]+)", text)) for name, text in found.items()}
    for name, text in found.items():
        if name == "404.html":
            continue
        for target in re.findall(r"<a\b[^>]*?\bhref=\"?([^\s\">]+)", text):
            link = urlsplit(unescape(target))
            if link.scheme or link.netloc:
                continue
            there = (site / name).parent / unquote(link.path) if link.path else site / name
            there = there / "index.html" if there.is_dir() else there
            assert there.is_file(), (name, target)
            page = there.resolve().relative_to(site.resolve()).as_posix()
            if link.fragment and page in places:
                assert unquote(link.fragment) in places[page], (name, target)


def test_column_heads_link_to_the_glossary(site: Path) -> None:
    found = pages(site)
    for name, head, anchor in (
        ("results/tiny.html", "Var(log q)", "var"),
        ("results/tiny.html", "argmax accuracy", "argmax-accuracy"),
        ("results/parallel.html", "bits per byte", "bits-per-byte"),
    ):
        assert re.search(
            rf'<th[^>]*><a href="\.\./glossary\.html#{anchor}">{re.escape(head)}</a></th>', found[name]
        )
    assert "<th>path</th>" in found["replicate.html"], "a file's path is not a reveal path"
    assert not re.search(r"<th[^>]*><a", found["glossary.html"])


def test_the_reference_holds_the_public_names(site: Path) -> None:
    import orderlens

    text = pages(site)["python.html"]
    modules = {"analysis", "metrics", "tasks", "theory", "__version__"}
    for name in set(orderlens.__all__) - modules:
        assert re.search(rf'id="orderlens\.[a-z_.]*\b{name}"', text), name


def test_every_verb_stands_on_the_page_of_commands(site: Path) -> None:
    text = pages(site)["command-line.html"]
    for verb in (
        "score",
        "generate",
        "analyze",
        "report",
        "view",
        "runs show",
        "runs import",
        "theory profile",
    ):
        assert f"orderlens {verb}</code>" in text, verb
    assert "--temperature" in text
