"""Components are found by name, and every one of them has its place in the folders."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

from polyclinic.components.base import Component, Level
from polyclinic.components.registry import component, components, find_component
from polyclinic.core.errors import PolyclinicError

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "image": "images",
    "feature": "features",
    "objective": "objectives",
    "aggregation": "aggregation",
    "update": "updates",
}


def published() -> dict[str, Path]:
    """File of every component of the package, relative to ``components``; other tests may register their own."""
    package = ROOT / "src" / "polyclinic" / "components"
    files = {name: Path(inspect.getfile(cls)) for name, cls in components().items()}
    return {name: path.relative_to(package) for name, path in files.items() if path.is_relative_to(package)}


def test_every_level_has_a_folder() -> None:
    assert set(get_args(Level)) == FOLDERS.keys()


@pytest.mark.parametrize("name", published())
def test_a_component_lies_in_the_folder_of_its_level_and_its_tests_beside(name: str) -> None:
    path = published()[name]
    assert path.as_posix() == f"{FOLDERS[find_component(name).level]}/{name}.py"
    assert (ROOT / "tests" / "components" / path.parent / f"test_{path.name}").is_file()


def test_all_modules_of_the_toolbox_have_tests_beside_too() -> None:
    toolbox = ROOT / "src" / "polyclinic" / "components" / "toolbox"
    modules = [path.relative_to(toolbox) for path in toolbox.rglob("*.py") if path.name != "__init__.py"]
    tests = ROOT / "tests" / "components" / "toolbox"
    assert [str(path) for path in modules if not (tests / path.parent / f"test_{path.name}").is_file()] == []


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(PolyclinicError, match=r"'proximl' is not a component.*proximal"):
        find_component("proximl")


def test_two_components_of_one_name_are_refused() -> None:
    class Second(Component):
        name = "proximal"
        level = "objective"

    with pytest.raises(PolyclinicError, match="Two components are called 'proximal'"):
        component(Second)
    assert find_component("proximal") is not Second
