"""Engines on one machine, up to the first process; tests/e2e runs them whole."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flower_support import png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy import local_federation
from polyclinic.deploy.coordinator.launch import Launch
from polyclinic.federation.observer import Observer


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
    recipe = png_recipe(tiny_federation, engine={"name": "simulation", "max_message_mb": 2}, plugins=["a_plugin"])
    with pytest.raises(Submitted) as submitted:
        local_federation.run_on_this_machine(recipe, ("north", "south"), "tiny", tmp_path, Observer())
    launch, settings, (folder, address, _, limit, simulated) = submitted.value.args
    assert (launch.sites, launch.named, launch.resume) == (("north", "south"), False, True)
    assert settings["data"] == str(tiny_federation)
    assert settings["sites"] == '["north", "south"]'
    assert (folder, address.host, address.keys, limit, simulated) == (
        tmp_path, "127.0.0.1", None, 2 * 10**6, ("north", "south"),
    )  # fmt: skip
    policy = tomllib.loads((tmp_path / "sites" / "policy.toml").read_text())
    assert policy == {"per_case_metrics": "named", "minimum_images": 1, "plugins": ["a_plugin"]}


def test_a_simulation_without_ray_gets_a_sentence(tiny_federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    recipe = png_recipe(tiny_federation, engine={"name": "simulation"})
    with pytest.raises(PolyclinicError, match=r"needs Ray; run: pip install 'polyclinic\[simulation\]'"):
        local_federation.run_on_this_machine(recipe, ("north",), "tiny", Path("nowhere"), Observer())
