"""The theory imports numpy and scipy, of ours only the paper's printed values, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import orderlens.theory

SOURCE = Path(orderlens.theory.__file__).parent


def imported_roots(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            deeper = {f"orderlens.{alias.name}" for alias in node.names}
            found |= deeper if node.module == "orderlens" else {node.module or ""}
    return found


def test_source_imports_only_numpy_scipy_and_itself() -> None:
    for path in SOURCE.rglob("*.py"):
        for name in imported_roots(path):
            root = name.split(".")[0]
            ours = name in ("orderlens.theory", "orderlens.analysis.paper") or name.startswith(
                "orderlens.theory."
            )
            assert ours or root in {"numpy", "scipy", *sys.stdlib_module_names}, (path, name)


def test_importing_it_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, orderlens.theory, orderlens.claims.audit; "
        "heavy = {'torch', 'pandas', 'pyarrow', 'duckdb', 'matplotlib', 'statsmodels', 'typer', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_front_door_is_sorted_and_whole() -> None:
    names = orderlens.theory.__all__
    assert names == sorted(names)
    assert all(hasattr(orderlens.theory, name) for name in names)
