"""The data of a finished run: found again, changed since, and prepared otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.tested_data import open_tested_data, prepared_alike, reason_of
from polyclinic.runs.tested_models import TestedModels
from support import write_tiny_federation, write_tiny_recipe


def test_the_parts_are_those_of_the_run(finished: Callable[..., Path]) -> None:
    run = finished("fedavg", "protocol.kind=k-fold", "protocol.folds=2")
    data = open_tested_data(TestedModels.of(run))
    summary = RunFolder(run).summary()
    assert summary is not None
    assert {name: part.split.hash for name, part in data.parts.items()} == summary["split_sha256"]
    assert data.item("north", "case3").images[0].name == "case3.png"
    assert not data.by_slice
    for site, name in (("north", "case99"), ("nowhere", "case0")):
        with pytest.raises(PolyclinicError, match=f"no longer holds the image '{name}' of '{site}'"):
            data.item(site, name)


def test_a_federation_whose_task_has_changed_is_refused(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "f")
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    run = polyclinic.run(recipe, out=tmp_path / "run").folder
    text = (federation / "federation.toml").read_text()
    (federation / "federation.toml").write_text(text.replace('"disc"', '"disc", "core"'))
    with pytest.raises(PolyclinicError, match="has another task now"):
        open_tested_data(TestedModels.of(run))


def test_only_what_changes_a_test_image_must_agree(finished: Callable[..., Path]) -> None:
    models = TestedModels.of(finished())
    data = open_tested_data(models)
    prepared_alike(replace(models, recipe=with_changes(models.recipe, {"data.labelled": 1})), data)
    with pytest.raises(PolyclinicError, match=r"data\.intensity differs"):
        prepared_alike(replace(models, recipe=with_changes(models.recipe, {"data.intensity": "z-score"})), data)
    with pytest.raises(PolyclinicError, match="another task"):
        prepared_alike(replace(models, task=replace(models.task, modality="CT")), data)


def test_a_reason_is_one_printable_line() -> None:
    assert reason_of(PolyclinicError("No \x1b[31mway.\nGo home.")) == "No [31mway. Go home."
    assert reason_of(ValueError("odd")) == "ValueError: odd"
    assert len(reason_of(ValueError("x" * 9999))) <= 500
