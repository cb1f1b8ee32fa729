"""Build sdist and wheel, check both, and try the wheel in a clean environment of each supported Python.

    make release                 # or: python recipes/release.py [--out dist]

Supported versions are those of the classifiers in pyproject.toml; a version that is not on this machine is
named as not tried. Nothing is uploaded. Uses the standard library alone, and does not import orderlens.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIAL = (
    ("doctor",),
    ("score", "--model", "hmm", "--limit", "4", "--noise-floor", "--out", "run"),
    ("analyze", "run"),
    ("report", "run", "--out", "report.html"),
)
"""What a newcomer runs first; none of it needs torch."""


def classified() -> list[str]:
    """Return the Python versions that the classifiers name, e.g. ``3.11``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in project["classifiers"])
    return [match.group(1) for match in found if match]


def interpreter(version: str) -> str | None:
    """Return a Python of this version: from PATH, or one that pyenv installed."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *sorted(map(str, root.glob(f"{version}.*/bin/python")))]
    for place in filter(None, places):
        command = [place, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.stdout.strip() == version:
            return place
    return None


def call(*command: str | Path, folder: Path = ROOT) -> None:
    """Run a command; end with its output if it fails."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, cwd=folder, env=surroundings, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(words)}\n{done.stdout}{done.stderr}")


def environment(python: str, place: Path, *packages: str | Path) -> Path:
    """Return the Python of a new environment with these packages."""
    call(python, "-m", "venv", place)
    pip = (place / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    call(*pip, "-U", "pip>=25")
    call(*pip, "-c", ROOT / "constraints.txt", *packages)
    return place / "bin" / "python"


def tracked(folder: str) -> set[str]:
    """Return the files of a folder that git tracks, relative to the repository."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def differences(wheel: Path, sdist: Path) -> list[str]:
    """Return what is wrong with the contents: files that are missing, and files that do not belong there."""
    package = {name.removeprefix("src/") for name in tracked("src/orderlens")}
    with zipfile.ZipFile(wheel) as archive:
        wheel_files = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        names = (member.name.partition("/")[2] for member in archive.getmembers() if member.isfile())
        sdist_files = set(names) - {"PKG-INFO"}
    needed = tracked("src/orderlens") | {"pyproject.toml", "README.md", "LICENSE"}
    return [
        *(f"wheel lacks {name}" for name in sorted(package - wheel_files)),
        *(f"wheel holds {name}, which git does not track" for name in sorted(wheel_files - package)),
        *(f"sdist lacks {name}" for name in sorted(needed - sdist_files)),
        *(f"sdist holds {name}, which git does not track" for name in sorted(sdist_files - tracked("."))),
    ]


def build(out: Path, work: Path) -> tuple[Path, Path]:
    """Write wheel and sdist to an emptied ``out``; return both after a check of metadata and contents."""
    shutil.rmtree(out, ignore_errors=True)
    tools = environment(sys.executable, work / "tools", "build", "twine")
    call(tools, "-m", "build", "--outdir", out)  # the wheel is built from the sdist
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    call(tools, "-m", "twine", "check", "--strict", wheel, sdist)
    if wrong := differences(wheel, sdist):
        sys.exit("\n".join(wrong[:20]))
    return wheel, sdist


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="Folder for wheel and sdist.")
    out = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        wheel, sdist = build(out, work)
        for file in (wheel, sdist):
            print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB, metadata and contents checked")
        for version in classified():
            python = interpreter(version)
            if python is None:
                print(f"Python {version}: not tried, it is not on this machine")
                continue
            folder = work / version
            installed = environment(python, folder, wheel)
            for arguments in TRIAL:
                call(installed, "-m", "orderlens", *arguments, folder=folder)
            print(f"Python {version}: installed; {', '.join(step[0] for step in TRIAL)} ran")


if __name__ == "__main__":
    main()
