"""model.json: all that lies between a file and its mask, and nothing about the run's machine."""

from __future__ import annotations

import json
from pathlib import Path

from polyclinic.data.federation import Federation, Task
from polyclinic.export.settings import model_settings, size_for_network
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe


def test_settings_are_those_of_the_recipe_and_the_task() -> None:
    task = Task(("background", "left", "right"), 6, 2, "MRI", 1, None, (("both", (1, 2)),), True)
    data = {"patch": (8, 16), "spacing": (1.0, 1.0, 2.0), "intensity": "z-score", "orientation": "lps"}
    workspace = build_workspace(tiny_recipe(data=data, evaluation={"overlap": 0.25}), task)
    settings = model_settings(workspace, Federation("secret name", task, {}, Path("/hospital/data"), True))
    assert settings["regions"] == {"both": [1, 2]}
    assert (settings["channels"], settings["image_channels"], settings["neighbours"]) == (6, 2, 1)
    assert settings["preprocessing"]["orientation"] == "LPS"
    assert settings["preprocessing"]["size"] is None
    assert settings["inference"] == {
        "patch": [8, 16], "overlap": 0.25, "batch_size": workspace.recipe.evaluation.batch_size,
        "multiples": [4, 4], "fixed_size": None,
    }  # fmt: skip
    text = json.dumps(settings)
    assert "hospital" not in text
    assert "secret" not in text


def test_the_size_for_the_network_is_padded_to_multiples() -> None:
    settings = {"inference": {"patch": None, "multiples": [4, 8]}, "preprocessing": {"size": [10, 16]}}
    assert size_for_network(settings) == [12, 16]
    settings["preprocessing"]["size"] = None
    assert size_for_network(settings) is None
