from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import call


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_page_says_what_it_does_its_equations_settings_and_what_leaves(tiny_recipe_file: Path) -> None:
    done = call("explain", "fedprox(mu=0.5)", "-r", tiny_recipe_file)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    for words in (
        "FedAvg with a proximal term",
        "MLSys 2020",
        "FedProx eq. 2: (mu / 2) ||w - w^r||^2",
        "mu = 0.5 (component's default: 0.01)",
        "What leaves a site in every round (unet on tiny)",
        "Never leaves: every image and label.",
    ):
        assert words in done.out


def test_kept_weights_and_pooled_images_are_named(tiny_recipe_file: Path) -> None:
    assert "weights of the network" in call("explain", "fedbn", "-r", tiny_recipe_file).out
    pooled = call("explain", "central", "-r", tiny_recipe_file).out
    assert "EVERY IMAGE AND LABEL" in pooled
    assert "Never leaves" not in pooled


def test_json_is_all_that_goes_to_stdout_and_settings_can_be_changed(tiny_recipe_file: Path) -> None:
    small, wide = (
        json.loads(call("explain", "fedavg", "-r", tiny_recipe_file, "--json", "--set", f"network.width={width}").out)
        for width in (2, 4)
    )
    assert wide["weights_bytes"] > 3 * small["weights_bytes"]


def test_an_unknown_method_or_recipe_gets_a_sentence(tiny_recipe_file: Path) -> None:
    done = call("explain", "fedprx", "-r", tiny_recipe_file)
    assert done.code == 2
    assert done.err.startswith("error: 'fedprx' is not a method, did you mean 'fedprox'? Known: ")
    assert call("explain", "fedavg", "-r", "nowhere.toml").code == 2
    done = call("explain", "fsr", "-r", tiny_recipe_file)
    assert (done.code, done.err) == (
        2,
        "error: 'fsr' is a component, not a method; add it to one, such as fedavg+fsr.\n",
    )
