"""Tests mirror the tree: whoever changes a file finds its tests at the same path."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TESTS = ROOT / "src" / "polyclinic", ROOT / "tests"
# Tested elsewhere, and where.
ELSEWHERE = {
    "__main__.py": "e2e, which starts `python -m polyclinic`",
    "api.py": "tests/runs, tests/cli and the README's own example",
}


def has_logic(path: Path) -> bool:
    """Whether a file defines functions, or classes with methods: a list of settings or of components does not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))


def mirrored(path: Path) -> list[Path]:
    """Where the tests of a file may lie."""
    inside = path.relative_to(PACKAGE)
    names = [f"test_{inside.stem}.py"]
    if inside.parts[0] == "cli":  # named as they are called
        names = [f"test_cli_{inside.stem}.py"]
    return [TESTS / inside.parent / name for name in names]


MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py" and str(path.relative_to(PACKAGE)) not in ELSEWHERE and has_logic(path)
)


def test_there_are_modules() -> None:
    assert len(MODULES) > 150


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_module_with_logic_has_its_tests_at_the_mirrored_path(path: Path) -> None:
    wanted = mirrored(path)
    assert any(file.exists() for file in wanted), (
        f"{path.relative_to(ROOT)} has no tests of its own; write {wanted[0].relative_to(ROOT)}."
    )


def test_no_tests_of_modules_that_are_gone() -> None:
    packages = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_dir()}
    unknown = [
        folder.relative_to(TESTS).as_posix()
        for folder in TESTS.rglob("*")
        if folder.is_dir() and list(folder.glob("test_*.py")) and folder.relative_to(TESTS) not in packages
    ]
    assert set(unknown) <= {"benchmarks", "e2e", "recipes"}
