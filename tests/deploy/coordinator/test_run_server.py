"""``polyclinic server`` before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.deploy.coordinator.run_server import ServerSettings, run_server
from polyclinic.deploy.keys.key_folders import make_demo_keys
from polyclinic.federation.observer import Observer
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.folder import RunFolder


def test_a_finished_run_is_not_resumed_with_another_recipe(tmp_path: Path) -> None:
    recipe = make_recipe({"federation": "far", "data": {"size": [16, 16]}, "engine": {"name": "flower"}})
    folder = RunFolder(tmp_path / "run")
    folder.open(recipe, resume=False)
    write_json(folder.summary_file, {"average": {}})
    make_demo_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    settings = ServerSettings("127.0.0.1", 1, tmp_path / "keys" / "server")
    assert run_server(recipe, folder.path, settings, Observer(), resume=True) == {"average": {}}
    other = recipe.model_copy(update={"seed": 7})
    with pytest.raises(PolyclinicError, match=r"this run is finished, with another recipe \(seed differs"):
        run_server(other, folder.path, settings, Observer(), resume=True)


def test_sites_are_those_with_a_key_and_only_named_ones_if_names_are_given(tmp_path: Path) -> None:
    make_demo_keys(tmp_path / "keys", ["south", "north", "west"], ["127.0.0.1"])
    keys = tmp_path / "keys" / "server"
    assert ServerSettings("127.0.0.1", 1, keys).names() == ("north", "south", "west")
    assert ServerSettings("127.0.0.1", 1, keys, ("west", "north")).names() == ("north", "west")
    assert ServerSettings("127.0.0.1", 1, None, ("b", "a")).names() == ("a", "b")
    (tmp_path / "empty").mkdir()
    for settings, words in (
        (ServerSettings("127.0.0.1", 1, keys, ("nort",)), "--sites: nort has no key in .*; accept it with"),
        (ServerSettings("127.0.0.1", 1, tmp_path / "empty"), "sites: no site is accepted yet"),
        (
            ServerSettings("127.0.0.1", 1, tmp_path / "none"),
            "none: no such folder; make it with polyclinic keys",
        ),
        (ServerSettings("127.0.0.1", 1, None), "--insecure knows sites by name only"),
    ):
        with pytest.raises(PolyclinicError, match=words):
            settings.names()


def test_a_run_that_cannot_start_is_recorded_for_those_who_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyclinic.deploy.coordinator.supervisor._PORT_TIMEOUT", 0.0)
    recipe = make_recipe({"federation": "far", "data": {"size": [16, 16]}, "engine": {"name": "flower"}})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ServerSettings("127.0.0.1", listener.getsockname()[1], None, ("north",))
        with pytest.raises(PolyclinicError, match="cannot listen there"):
            run_server(recipe, tmp_path / "run", settings, Observer())
    assert "cannot listen there" in read_json(tmp_path / "run" / "live.json")["stopped"]
    (line,) = (tmp_path / "run" / "server.log").read_text().splitlines()
    assert "stopped: 127.0.0.1" in line
