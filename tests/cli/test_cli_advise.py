"""``polyclinic advise``."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from polyclinic import compare
from polyclinic.recipe.files import load_recipe
from support import call


def test_it_prints_traits_settings_methods_and_a_command(tiny_federation: Path) -> None:
    said = call("advise", str(tiny_federation))
    assert said.code == 0, said.err
    for word in ("structures", "shift", "Settings", "Methods", "fedavg", "leaves a site:", "polyclinic compare"):
        assert word in said.out, said.out
    assert "2 sites of 4 to 5 images" in said.out
    assert "runs (" in said.out


def test_the_question_stays_in_the_way_to_the_recipe(tiny_federation: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_federation, tmp_path / "my clinics")
    said = call("advise", str(folder), "--unseen", "--labelled", "1")
    line = next(line for line in said.out.splitlines() if line.startswith("As a recipe: "))
    wanted = ["polyclinic", "advise", str(folder), "--unseen", "--labelled", "1", "--write", "recipe.toml"]
    assert shlex.split(line.removeprefix("As a recipe: ")) == wanted
    assert "100% labelled" not in said.out
    assert "No table has tested sites that take no part yet." in said.out


def test_the_recipe_it_writes_runs_with_the_command_it_prints(tiny_federation: Path, tmp_path: Path) -> None:
    path = tmp_path / "advised.toml"
    plain = json.loads(call("advise", str(tiny_federation), "--write", str(path), "--json").out)
    assert path.read_text(encoding="utf-8") == plain["recipe"]
    assert str(path) in plain["command"]
    quick = [
        "training.rounds=1",
        "network.width=2",
        "network.depth=1",
        "data.size=[16, 16]",
        "evaluation.metrics=[dice]",
    ]
    methods = [one["method"] for one in plain["methods"]][:2]
    assert all(method in plain["command"] for method in methods)
    table = compare(load_recipe(path, quick), methods, seeds=1, out=tmp_path / "runs", jobs=1)
    assert table.methods == tuple(methods)


def test_json_says_what_was_measured_and_where() -> None:
    plain = json.loads(call("advise", "demo:nuclei", "--json").out)
    assert plain["traits"]["sites"] == 4
    for one in plain["methods"]:
        assert one["leaves"]
        assert one["work"] > 0
        assert (one["bytes_up"] > 0) == (one["bytes_down"] > 0) == (one["method"] != "local")
        assert {"reason", "cost", "left_out", "verdict"} <= one.keys()
        for measured in one["measured"]:
            assert measured["page"].startswith("benchmarks/real/")
            assert measured["reference"]
            assert measured["reference_dice"] > 0
            assert isinstance(measured["other_settings"], dict)
    assert plain["runs"] == 3 * plain["command"].split("--methods ")[1].split(" --seeds")[0].count(",") + 3
    assert plain["basis"]
    assert {"ceiling", "nearest", "alike", "notes", "settings", "recipe"} <= plain.keys()


@pytest.mark.parametrize("arguments", [("missing-folder",), ("demo:nucleus",)])
def test_a_federation_that_is_not_there_gets_a_sentence(arguments: tuple[str, ...]) -> None:
    said = call("advise", *arguments)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert arguments[0].removeprefix("demo:") in said.err


def test_a_federation_with_errors_must_be_mended_first(tiny_federation: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_federation, tmp_path / "damaged")
    image = next((folder / "north" / "images").iterdir())
    image.write_bytes(b"no image")
    said = call("advise", str(folder))
    assert said.code == 2
    assert image.name in said.err
    assert "polyclinic data check" in said.err

    assert "1 problem must be mended" in said.err


def test_a_budget_above_all_training_images_gets_a_sentence(tiny_federation: Path) -> None:
    said = call("advise", str(tiny_federation), "--labelled", "500")
    assert said.code == 2
    assert "--labelled 500: no site has more than 3 labelled training images" in said.err


def test_a_budget_that_hides_nothing_at_a_site_is_noted(tiny_federation: Path) -> None:
    said = call("advise", str(tiny_federation), "--labelled", "2")
    assert said.code == 0, said.err
    assert "1 site of 2 (south) would keep all labels" in " ".join(said.out.split())


def test_one_site_cannot_be_left_out(tiny_federation: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_federation, tmp_path / "alone")
    shutil.rmtree(folder / "south")
    assert "1 site of 5 images, 2D" in call("advise", str(folder)).out
    said = call("advise", str(folder), "--unseen")
    assert said.code == 2
    assert "needs two sites" in said.err


def test_it_writes_over_nothing(tiny_federation: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    said = call("advise", str(tiny_federation), "--write", str(path))
    assert said.code == 2
    assert "exists already" in said.err
    assert path.read_text() == "mine"
