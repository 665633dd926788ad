"""Engines on one machine, up to the first process; tests/e2e runs them whole."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flower_support import png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.prepared_cache import default_cache_folder
from polyclinic.deploy import local_federation
from polyclinic.deploy.coordinator.launch import Launch
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.federation.observer import Observer
from polyclinic.federation.site_policy import Policy, load_policy


class Submitted(Exception):  # noqa: N818
    """Carries what would have been started."""


class FakeSupervisor:
    """A coordinator that starts nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __enter__(self) -> FakeSupervisor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def serve(self, launch: Launch, folder: Path, settings: dict[str, Any], on_poll: Any) -> None:
        raise Submitted(launch, settings, self.arguments)


def test_a_simulation_gets_sites_folders_and_a_policy_that_holds_nothing_back(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_federation, "CoordinatorSupervisor", FakeSupervisor)
    recipe = png_recipe(
        tiny_federation, engine={"name": "simulation", "max_message_mb": 2}, plugins=["a_plugin"],
        data={"case_pattern": "(.+)"},
    )  # fmt: skip
    with pytest.raises(Submitted) as submitted:
        local_federation.run_on_this_machine(recipe, ("north", "south"), "tiny", tmp_path, Observer())
    launch, settings, (folder, address, _, limit, simulated) = submitted.value.args
    assert (launch.sites, launch.named, launch.resume) == (("north", "south"), False, True)
    assert settings["data"] == str(tiny_federation)
    assert settings["case_pattern"] == "(.+)"
    assert settings["sites"] == '["north", "south"]'
    assert (folder, address.host, address.keys, limit, simulated) == (
        tmp_path, "127.0.0.1", None, 2 * 10**6, ("north", "south"),
    )  # fmt: skip
    policy = tomllib.loads((tmp_path / "sites" / "policy.toml").read_text())
    chosen = {"per_case_metrics": "named", "minimum_images": 1, "plugins": ["a_plugin"]}
    assert policy.items() >= chosen.items()
    loaded, usual = load_policy(tmp_path / "sites" / "policy.toml"), Policy()
    assert loaded.max_steps_per_round > 10**6 * usual.max_steps_per_round
    for key in ("max_seconds_per_round", "max_home_gb", "keep_runs_days"):
        assert getattr(loaded, key) > 1000 * getattr(usual, key)
    assert loaded.memory_bytes > 1e15


def test_a_simulation_without_ray_gets_a_sentence(tiny_federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    recipe = png_recipe(tiny_federation, engine={"name": "simulation"})
    with pytest.raises(PolyclinicError, match=r"needs Ray; run: pip install 'polyclinic\[simulation\]'"):
        local_federation.run_on_this_machine(recipe, ("north",), "tiny", Path("nowhere"), Observer())


def test_sites_on_this_machine_read_cases_by_the_recipe_s_own_pattern(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them belong to the user whose recipe it is; a site elsewhere takes no pattern from a server."""

    def supervisor(settings: SiteSettings, *_: object) -> None:
        raise Submitted(settings)

    monkeypatch.setattr(local_federation, "SiteSupervisor", supervisor)
    recipe = png_recipe(tiny_federation, data={"case_pattern": "(.+)"})
    address = ListenAddress("127.0.0.1", 1, None)
    with (
        pytest.raises(Submitted) as submitted,
        local_federation._site_supervisor(recipe, "north", tmp_path, tmp_path, address, tmp_path / "policy.toml"),
    ):
        pass
    assert submitted.value.args[0].case_pattern == "(.+)"
    assert submitted.value.args[0].cache == str(default_cache_folder()), "not in the folder of the run"
