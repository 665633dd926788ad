"""Finished runs on a tiny federation, made once and shared: never write into their folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import write_tiny_federation, write_tiny_recipe


@pytest.fixture(scope="session")
def tiny_federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites, PNG, 16x16: ``north`` with 5 images, ``south`` with 4."""
    return write_tiny_federation(tmp_path_factory.mktemp("federation") / "tiny")


@pytest.fixture(scope="session")
def tiny_recipe_file(tiny_federation: Path) -> Path:
    """A recipe for it."""
    return write_tiny_recipe(tiny_federation.parent / "recipe.toml", tiny_federation)


@pytest.fixture(scope="session")
def finished(tiny_recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``finished(method, "key=value", ...)`` gives the folder of such a run."""
    from polyclinic import run

    done: dict[tuple[str, ...], Path] = {}

    def folder(method: str = "fedavg", *overrides: str) -> Path:
        if (method, *overrides) not in done:
            out = tmp_path_factory.mktemp("run") / "run"
            done[method, *overrides] = run(tiny_recipe_file, out=out, method=method, overrides=overrides).folder
        return done[method, *overrides]

    return folder
