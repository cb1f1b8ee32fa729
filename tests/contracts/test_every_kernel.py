"""Every Triton kernel is run by a test that needs no GPU; both are found by reading the sources."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for room in ("decode", "kernels", "models", "training")  # torch is imported nowhere else
    for path in (ROOT / "src" / "orderlens" / room).rglob("*.py")
}
TESTS = [
    ast.parse(text)
    for path in (ROOT / "tests").rglob("test_*.py")
    if "kernel_place()" in (text := path.read_text(encoding="utf-8"))
]


@functools.cache
def names_in(tree: ast.AST) -> set[str]:
    """Return every name that is read or called, without what stands before its dots."""
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}
    return {getattr(node, kinds[type(node)]) for node in ast.walk(tree) if type(node) in kinds}


@functools.cache
def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def is_kernel(function: ast.FunctionDef) -> bool:
    return "triton.jit" in [ast.unparse(mark) for mark in function.decorator_list]


def doors(tree: ast.Module, kernel: str) -> set[str]:
    """Return the functions of a module from which a kernel is reached, also through other kernels."""
    found, size = {kernel}, 0
    while len(found) > size:
        size = len(found)
        found |= {function.name for function in functions(tree) if names_in(function) & found}
    return found - {function.name for function in functions(tree) if is_kernel(function)}


NAMED = {name for test in TESTS for name in names_in(test)}
KERNELS = [
    pytest.param(path, function.name, id=f"{path.stem}:{function.name}")
    for path, tree in SOURCES.items()
    for function in functions(tree)
    if is_kernel(function)
]


@functools.cache
def uses() -> list[tuple[str, set[str]]]:
    """Return every class and function with the names that it reads."""
    return [
        (node.name, names_in(node))
        for tree in SOURCES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]


def test_kernels_and_their_tests_are_found():
    assert len(KERNELS) >= 18
    assert len(TESTS) >= 3


@pytest.mark.parametrize(("path", "kernel"), KERNELS)
def test_a_test_in_the_interpreter_reaches_it(path, kernel):
    """Through its own launcher, or through a class (a network's operations, the head) that a test names."""
    launchers = doors(SOURCES[path], kernel)
    if not launchers:  # shared by kernels of other files
        launchers = {name for tree in SOURCES.values() for name in doors(tree, kernel)}
    assert launchers, "nothing launches it"
    users = {name for name, used in uses() if used & launchers}
    assert (launchers | users) & NAMED
