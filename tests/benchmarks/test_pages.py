"""Pages of tables on real federations: what they name exists, and what is committed follows from the records."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from polyclinic.methods.expression import parse_method

REAL = Path(__file__).resolve().parents[2] / "benchmarks" / "real"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REAL))
    for name in ("pages", "page", "records"):
        sys.modules.pop(name, None)
    import pages

    return pages


def test_every_recipe_loads_and_every_method_is_one(pages: ModuleType, tmp_path: Path) -> None:
    for page in pages.PAGES.values():
        assert len({grid.name for grid in page.grids}) == len(page.grids)
        for grid in page.grids:
            recipe = grid.recipe_on(tmp_path)
            assert Path(recipe.federation).parent == tmp_path
            assert (recipe.network.width >= 16 and recipe.network.depth >= 4) or page.name == "fsf3a"
            for method in grid.methods:
                assert parse_method(method)
            for methods in grid.parts.values():
                assert set(methods) <= set(grid.methods)
