"""A run knows what its method consisted of, whatever a later version's defaults are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.core.tensor_files import save_tensors
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.grid_finished import is_finished
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.method_record import method_changes, recorded_method, write_method
from polyclinic.runs.tested_data import open_tested_data
from polyclinic.runs.tested_models import TestedModels
from polyclinic.runs.trained_model import load_model
from support import tiny_recipe

METHOD = "fedprox(mu=0.1)"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that was begun, with one round done."""
    folder = RunFolder(tmp_path / "run")
    folder.open(tiny_recipe(METHOD), resume=False)
    save_tensors(folder.part("all") / "server.safetensors", {}, {"round": 1})
    return folder


def as_if_begun_with(folder: RunFolder, mu: float) -> None:
    parts = read_json(folder.path / "method.json")
    write_json(
        folder.path / "method.json",
        [
            {**part, "settings": {**part["settings"], "mu": mu}} if part["component"] == "proximal" else part
            for part in parts
        ],
    )


def in_a_grid(folder: RunFolder) -> GridRun:
    return GridRun("one", METHOD, folder.path, load_recipe(folder.recipe_file), folder.path.parent)


def test_every_component_is_written_down_with_all_of_its_settings(folder: RunFolder) -> None:
    parts = {part["component"]: part["settings"] for part in json.loads((folder.path / "method.json").read_text())}
    assert set(parts) == {"weighted_mean", "proximal"}
    assert parts["proximal"]["mu"] == 0.1
    assert parts["weighted_mean"]["weighting"] == "samples"


def test_the_same_method_goes_on_and_counts_as_finished(folder: RunFolder) -> None:
    folder.open(load_recipe(folder.recipe_file), resume=True)
    assert method_changes(folder.path, ["seed"], METHOD) == ["seed"]
    (folder.path / "summary.json").write_text("{}")
    assert is_finished(in_a_grid(folder))


def test_a_default_that_another_version_changed_is_named_and_the_run_does_not_go_on(folder: RunFolder) -> None:
    """The recipe's text is the same, and the weights would not be."""
    as_if_begun_with(folder, 0.3)
    with pytest.raises(PolyclinicError, match=r"differs .* in proximal\.mu \(was 0\.3\); resume"):
        folder.open(load_recipe(folder.recipe_file), resume=True)
    with pytest.raises(PolyclinicError, match=r"differs .* in proximal\.mu \(was 0\.3\); resume"):
        is_finished(in_a_grid(folder))


def test_such_a_run_goes_on_under_an_expression_that_says_what_it_was(folder: RunFolder) -> None:
    as_if_begun_with(folder, 0.3)
    recipe = load_recipe(folder.recipe_file)
    folder.open(recipe.model_copy(update={"method": "fedavg+proximal(mu=0.3)"}), resume=True)
    with pytest.raises(PolyclinicError, match=r"in method; resume"):
        folder.open(recipe.model_copy(update={"method": "fedavg"}), resume=True)


def test_a_method_of_other_components_is_another_method(tmp_path: Path) -> None:
    write_method(tmp_path, METHOD)
    assert method_changes(tmp_path, ["method"], "fedavg") == ["method"]
    assert method_changes(tmp_path, [], "fedavg") == ["method"]


def test_a_setting_that_did_not_exist_then_is_not_compared(folder: RunFolder) -> None:
    parts = read_json(folder.path / "method.json")
    for part in parts:
        part["settings"].pop("weighting", None)
    write_json(folder.path / "method.json", parts)
    assert method_changes(folder.path, [], METHOD) == []


def test_a_setting_that_is_gone_is_named(folder: RunFolder) -> None:
    parts = read_json(folder.path / "method.json")
    parts[0]["settings"]["former"] = 1
    write_json(folder.path / "method.json", parts)
    assert method_changes(folder.path, [], METHOD) == [f"{parts[0]['component']}.former (was 1)"]


def test_a_run_from_before_the_record_is_known_by_its_summary_or_not_at_all(folder: RunFolder) -> None:
    parts = read_json(folder.path / "method.json")
    (folder.path / "method.json").unlink()
    assert method_changes(folder.path, [], METHOD) == []
    parts[1]["settings"]["mu"] = 0.7
    write_json(folder.path / "summary.json", {"components": parts})
    assert method_changes(folder.path, [], METHOD) == [f"{parts[1]['component']}.mu (was 0.7)"]


def test_pooling_all_images_is_another_method_of_the_same_components(tmp_path: Path) -> None:
    write_method(tmp_path, "central")
    assert method_changes(tmp_path, ["method"], "fedavg", before="central") == ["method"]
    assert method_changes(tmp_path, [], "central", before="central") == []


def test_the_model_of_a_run_is_built_as_it_was_trained(tiny_recipe_file: Path, tmp_path: Path) -> None:
    """A gate that sums to one has the weights of one that does not: nothing but the record tells them apart."""
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method="fedbcs-cdpa+fsr(gate=softmax)").folder
    images = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))

    def predicted() -> list[torch.Tensor]:
        loaded, _ = load_model(run, site=None, part=None, model=None)
        tested = TestedModels.of(run)
        tested.load(open_tested_data(tested).parts["all"], "north")
        with torch.inference_mode():
            return [loaded.network.eval()(images), tested.workspace.network.eval()(images)]

    before = predicted()
    text = (run / "recipe.toml").read_text(encoding="utf-8")
    # As another version writes it down that had this gate as default.
    (run / "recipe.toml").write_text(text.replace("fedbcs-cdpa+fsr(gate=softmax)", "fedbcs-cdpa"), encoding="utf-8")
    for was, now in zip(before, predicted(), strict=True):
        assert torch.equal(was, now)
    (run / "method.json").unlink()
    assert read_json(run / "summary.json")["components"], "an older run has its method in its summary"
    for was, now in zip(before, predicted(), strict=True):
        assert torch.equal(was, now)
    summary = read_json(run / "summary.json")
    write_json(run / "summary.json", {key: value for key, value in summary.items() if key != "components"})
    assert not torch.equal(before[0], predicted()[0]), "without any record there is only today's default"


def test_a_model_that_today_cannot_build_says_which_version_can(folder: RunFolder) -> None:
    as_if_begun_with(folder, 0.5)
    assert recorded_method(folder.path, METHOD).parts[1].settings["mu"] == 0.5
    parts = read_json(folder.path / "method.json")
    write_json(folder.path / "method.json", [{**parts[1], "settings": {"gone": 1}}])
    with pytest.raises(PolyclinicError, match=r"method\.json: 'gone' is not a setting of proximal.*versions\.json"):
        recorded_method(folder.path, METHOD)


@pytest.mark.parametrize(
    "content", [{"component": "fsr"}, [1], [{"component": "fsr"}], [{"component": 1, "settings": 2}]]
)
def test_a_record_that_is_none_gets_a_sentence(folder: RunFolder, content: object) -> None:
    write_json(folder.path / "method.json", content)
    with pytest.raises(PolyclinicError, match=r"method\.json: expected a list of components"):
        recorded_method(folder.path, METHOD)
