"""``polyclinic advise``."""

from __future__ import annotations

import json
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
        for measured in one["measured"]:
            assert measured["page"].startswith("benchmarks/real/")
            assert measured["reference"]


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


def test_it_writes_over_nothing(tiny_federation: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    said = call("advise", str(tiny_federation), "--write", str(path))
    assert said.code == 2
    assert "exists already" in said.err
    assert path.read_text() == "mine"
