"""Panels of methods that align features, and of those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyclinic
from gallery_support import MORE_TESTS, grid_of, table
from polyclinic.runs.feature_samples import Samples, samples_of_sites
from polyclinic.runs.features import make_features
from polyclinic.runs.tested_models import TestedModels
from support import write_tiny_federation, write_tiny_recipe

Finished = Callable[..., Path]


def test_panels_of_a_comparison(finished: Finished, tmp_path: Path) -> None:
    methods = ("fedavg", "fedbcs", "pathfl", "fedfa", "fedprox")
    folder = grid_of(tmp_path, finished, methods, MORE_TESTS)
    told: list[str] = []
    result = make_features(folder, progress=lambda done, total, what: told.append(f"{done}/{total} {what}"))
    found = table(folder, "features.json")
    panels = {(panel["method"], panel["component"], panel["tap"]): panel for panel in found["panels"]}
    assert list(panels) == [
        ("fedbcs", "fsr", "encoder1"), ("fedbcs", "cdpa", "decoder0"), ("pathfl", "afa", "bottleneck"),
        ("fedfa", "feature_augmentation", "bottleneck"),
    ]  # fmt: skip
    assert (found["version"], result.panels, found["skipped"], result.skipped) == (1, 4, [], [])
    assert told == ["0/5 fedavg", "1/5 fedbcs", "2/5 pathfl", "3/5 fedfa", "4/5 fedprox", "5/5 "]
    for panel in panels.values():
        sites = [point["site"] for point in panel["before"]]
        assert sites == [point["site"] for point in panel["after"]] == ["north"] * 3 + ["south"] * 2
        assert 0 < sum(panel["explained"]) <= 1 + 1e-9
    assert {point["class"] for point in panels["fedbcs", "cdpa", "decoder0"]["after"]} == {"disc"}
    assert {point["class"] for point in panels["fedbcs", "fsr", "encoder1"]["after"]} == {None}
    assert "fedavg and fedbcs, both as tested" in panels["fedbcs", "cdpa", "decoder0"]["note"]
    assert "what goes into fsr" in panels["fedbcs", "fsr", "encoder1"]["note"]
    assert panels["fedbcs", "cdpa", "decoder0"]["variance_left"] is None
    assert panels["pathfl", "afa", "bottleneck"]["variance_left"] < 0.5


def test_what_a_module_makes_alike_has_no_variance_to_share(finished: Finished, tmp_path: Path) -> None:
    # One amplitude for all frequencies: by Parseval's theorem all images have one mean and one deviation.
    folder = grid_of(tmp_path, finished, ("fedavg+amplitude_normalisation(window=1)",), MORE_TESTS)
    make_features(folder)
    (panel,) = table(folder, "features.json")["panels"]
    assert max(abs(point[axis]) for point in panel["after"] for axis in "xy") < 0.01
    assert max(abs(point[axis]) for point in panel["before"] for axis in "xy") > 0.5
    assert panel["variance_left"] < 1e-3
    assert panel["between_sites"].keys() == {"before"}
    assert panel["note"].endswith("After it all images are alike.")


def test_the_reference_alone_is_compared_with_itself_before_the_first_round(finished: Finished, tmp_path: Path) -> None:
    folder = grid_of(tmp_path, finished, ("fedproto",), MORE_TESTS)
    make_features(folder)
    (panel,) = table(folder, "features.json")["panels"]
    assert "fedproto before the first round and as tested" in panel["note"]
    assert panel["before"] != panel["after"]
    assert make_features(folder, reference="fedproto").reused


def test_nothing_is_made_twice_and_nothing_read_for_methods_that_align_nothing(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = grid_of(tmp_path, finished, ("fedavg", "fedprox"), MORE_TESTS)
    monkeypatch.setattr("polyclinic.runs.features.open_tested_data", lambda _: pytest.fail("images were read"))
    first = make_features(folder)
    assert (first.panels, first.skipped, first.reused) == (0, [], False)
    assert make_features(folder).reused


def test_images_that_are_elsewhere_cost_the_panel_and_nothing_else(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "f")
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    run = polyclinic.run(recipe, out=tmp_path / "run", method="fedproto").folder
    federation.rename(tmp_path / "moved")
    told: list[str] = []
    result = make_features(run, warn=told.append)
    assert (result.panels, [entry["method"] for entry in result.skipped]) == (0, ["fedproto"])
    assert told == [f"no features: fedproto: {result.skipped[0]['reason']}"]
    assert "no such folder" in told[0]
    (tmp_path / "moved").rename(federation)
    assert make_features(run).panels == 1


def test_classes_that_a_coarse_map_has_lost_cost_their_panel_alone(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = grid_of(tmp_path, finished, ("fedavg", "fedbcs"), MORE_TESTS)

    def without_labels(*arguments: Any) -> Samples:
        found = samples_of_sites(*arguments)
        return {site: [(image, label * 0) for image, label in pairs] for site, pairs in found.items()}

    monkeypatch.setattr("polyclinic.runs.features.samples_of_sites", without_labels)
    result = make_features(folder)
    assert [panel["title"] for panel in table(folder, "features.json")["panels"]] == ["fsr: features at encoder1"]
    (skipped,) = result.skipped
    assert skipped["reason"].startswith("cdpa: class means at decoder0: no class is left")


@pytest.mark.parametrize("kind", ["leave-one-site-out", "k-fold"])
def test_the_first_part_of_a_protocol_is_shown(finished: Finished, tmp_path: Path, kind: str) -> None:
    folder = grid_of(tmp_path, finished, ("fedavg", "harmofl"), f"protocol.kind={kind}", "protocol.folds=2")
    make_features(folder)
    (panel,) = table(folder, "features.json")["panels"]
    parts = TestedModels.of(folder / "run1").folder.path.glob("checkpoints/*")
    assert panel["part"] == sorted(path.name for path in parts)[0]
    assert {point["site"] for point in panel["after"]} == {"north", "south"}
