"""Imports go down the floors of the house only: whatever lies deeper knows nothing of what stands on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "polyclinic"
# From the ground up. Names on one floor do not know each other.
FLOORS = (
    ("core",), ("recipe",), ("data",), ("networks",), ("evaluation",), ("exchange",), ("components",), ("methods",),
    ("federation",), ("engines",), ("runs",), ("report", "preview", "export"), ("deploy",), ("api",), ("cli",),
)  # fmt: skip
# Inside of `components`: the contract, the helpers, the published ideas. An idea never imports another one's level.
COMPONENT_FLOORS = (
    ("rounds",), ("step",), ("base",), ("registry",), ("toolbox",),
    ("images", "features", "objectives", "aggregation", "updates"),
)  # fmt: skip


def imported_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, inside functions and for type checkers too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full, from polyclinic. on"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def upward_imports(
    file: str, source: str, prefix: str = "polyclinic", floors: tuple[tuple[str, ...], ...] = FLOORS
) -> list[str]:
    """A sentence for each import of a file that goes up, or sideways; ``file`` is relative to ``prefix``."""
    level = {name: number for number, names in enumerate(floors) for name in names}
    own, problems = file.removesuffix(".py").split("/")[0], []
    for line, name in imported_names(source):
        if not name.startswith(f"{prefix}."):
            continue
        other = name.removeprefix(f"{prefix}.").split(".")[0]
        if own == other or (own in level and other in level and level[other] < level[own]):
            continue
        if own not in level or other not in level:
            problems.append(
                f"{file}:{line} imports {name}: put '{own if own not in level else other}' on a floor first."
            )
        else:
            way = "up" if level[other] > level[own] else "sideways"
            problems.append(f"{file}:{line} imports {name}, {way} from '{own}'; move what both need further down.")
    return problems


def sources(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
        if path.parent != PACKAGE or path.name not in ("__init__.py", "__main__.py")
    }


def test_imports_go_down() -> None:
    problems = [sentence for file, text in sources(PACKAGE).items() for sentence in upward_imports(file, text)]
    assert not problems, "\n".join(problems)


def test_imports_inside_of_components_go_down_too() -> None:
    files = {f: text for f, text in sources(PACKAGE / "components").items() if f != "__init__.py"}
    problems = [
        sentence
        for file, text in files.items()
        for sentence in upward_imports(file, text, "polyclinic.components", COMPONENT_FLOORS)
    ]
    assert not problems, "\n".join(problems)


def test_everything_has_a_floor() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"}
    assert there == {name for names in FLOORS for name in names} | {"__init__", "__main__"}


def test_the_architecture_page_draws_these_floors() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    house = page[page.index("## The house") :]
    drawn = re.findall(r"^  (\w+)(?:/|\.py)", house[: house.index("```\n\n")], re.MULTILINE)
    assert drawn == [name for names in reversed(FLOORS) for name in names]
    arrows = " ".join(house[house.index("`cli →") :].split("`")[1].split())
    assert arrows == " → ".join(" | ".join(names) for names in reversed(FLOORS))


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("from polyclinic.cli import main", "up"),
        ("def late():\n    import polyclinic.cli.run", "up"),
        ("if TYPE_CHECKING:\n    from polyclinic.deploy.site import worker", "up"),
        ("from polyclinic import api", "up"),
        ("from polyclinic.preview.cost import costs", "sideways"),
    ],
)
def test_an_import_that_does_not_go_down_gets_a_sentence(source: str, way: str) -> None:
    (sentence,) = upward_imports("report/tables.py", source)
    assert sentence.startswith("report/tables.py:")
    assert f", {way} from 'report'" in sentence


def test_a_new_package_must_get_a_floor() -> None:
    (sentence,) = upward_imports("newcomer/a.py", "from polyclinic.core import errors")
    assert "put 'newcomer' on a floor first" in sentence
