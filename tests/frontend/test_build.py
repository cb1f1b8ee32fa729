"""The committed front end is what its sources give, and its own tests pass (where Node is there)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONTEND, ASSETS = ROOT / "frontend", ROOT / "src/orderlens/show/report/assets"
NODE = shutil.which("node")

with_node = pytest.mark.skipif(
    NODE is None or not (FRONTEND / "node_modules/esbuild").is_dir(),
    reason="needs Node and the packages of frontend/ ('make frontend' installs them)",
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=FRONTEND, capture_output=True, text=True, check=False)


@with_node
def test_a_fresh_build_gives_the_committed_bytes(tmp_path):
    done = run(NODE, "build.mjs", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in ASSETS.iterdir()}, "run: make frontend"


@with_node
def test_types_hold_and_its_own_tests_pass():
    assert run(NODE, "node_modules/typescript/bin/tsc", "--noEmit").stdout == ""
    assert run(NODE, "build.mjs", "--test").returncode == 0
    done = run(NODE, "--test", "--test-reporter=tap", ".test/all.test.mjs")
    assert done.returncode == 0, done.stdout
    assert "# fail 0" in done.stdout


def test_the_lock_file_pins_versions_and_names_no_registry():
    lock = json.loads((FRONTEND / "package-lock.json").read_text())
    wanted = json.loads((FRONTEND / "package.json").read_text())["devDependencies"]
    for name, version in wanted.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
    assert not [name for name, item in lock["packages"].items() if "resolved" in item]


def test_the_front_end_writes_no_markup():
    banned = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
    for source in (FRONTEND / "src").glob("*.ts"):
        found = [word for word in banned if word in source.read_text(encoding="utf-8")]
        assert not found, f"{source.name} uses {found}: build elements with dom.ts"
