from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from polyclinic.components.registry import components
from polyclinic.methods.registry import methods
from polyclinic.recipe import Recipe
from polyclinic.report import reference
from polyclinic.report.reference import method_page, methods_page, recipe_page, write_pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
LINKS = dict(re.findall(r"^\| \[`(\w+)`\]\(([^)]+)\)", methods_page().partition("## Components")[0], re.MULTILINE))


def test_every_method_is_listed_once() -> None:
    assert LINKS.keys() == methods().keys()


@pytest.mark.parametrize("method", methods())
def test_a_method_links_to_a_page_that_explains_it(method: str) -> None:
    page = FOLDER / LINKS[method]
    assert page.is_file()
    assert f"`{method}`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("component", components())
def test_a_component_links_to_a_page_that_explains_it(component: str) -> None:
    listed = methods_page().partition("## Components")[2]
    (link,) = re.findall(rf"^\| \[`{component}`\]\(([^)]+)\)", listed, re.MULTILINE)
    assert f"`{component}" in (FOLDER / link).read_text(encoding="utf-8")


def test_bounds_and_references_share_pages() -> None:
    assert [method_page(name) for name in ("fl_lower", "fl_upper")] == ["methods/bounds.md"] * 2
    assert [method_page(name) for name in ("local", "central")] == ["methods/references.md"] * 2
    assert method_page("fedavg") == "methods/fedavg.md"


def test_a_component_without_a_page_is_listed_without_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"component": "mine", "level": "objective", "summary": "An idea.", "equations": ["|p|"], "settings": []}
    monkeypatch.setattr(reference, "component_rows", lambda: [row])
    assert "| `mine` | objective | An idea. |  | \\|p\\| |" in methods_page()


def test_the_recipe_page_has_every_section_and_key() -> None:
    page = recipe_page()
    for name, field in Recipe.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            section = page.partition(f"\n## [{name}]\n")[2].partition("\n## ")[0]
            assert all(f"| `{key}` |" in section for key in kind.model_fields), name
        else:
            assert f"| `{name}` |" in page.partition("\n## [")[0]


def test_a_key_has_its_default_values_limits_and_description() -> None:
    class Example(BaseModel):
        """What it is about.

        More.
        """

        must: int
        share: float = Field(0.5, ge=0, lt=1, description="of all | some")
        kind: Literal["a", "b"] | None = None
        sizes: tuple[Annotated[int, Field(gt=0)], ...] = (1, 2)
        on: bool = True

    assert reference._section_table("example", Example) == [
        "## [example]",
        "What it is about.",
        "",
        "| key | default | values | |",
        "|---|---|---|---|",
        "| `must` |  | integer |  |",
        "| `share` | `0.5` | number >= 0 < 1 | of all \\| some |",
        '| `kind` | `unset` | `"a"`, `"b"` |  |',
        "| `sizes` | `[1, 2]` | list of integer > 0 |  |",
        "| `on` | `true` | `true`, `false` |  |",
        "",
    ]


def test_pages_are_written_with_single_blank_lines(tmp_path: Path) -> None:
    write_pages(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["methods.md", "recipe.md"]
    assert all("\n\n\n" not in path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
