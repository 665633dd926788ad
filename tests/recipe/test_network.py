"""The table [network]: the class of a name, keys of other networks, recipes of older run folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import NetworkSettings, PretrainedSettings, Recipe, UNetSettings, ViTSettings
from polyclinic.recipe.files import (
    changed_keys,
    checked_network,
    load_recipe,
    make_recipe,
    recipe_text,
    with_checked_network,
)
from polyclinic.recipe.network import NETWORK_SETTINGS, UncheckedSettings, register_settings

OLD_UNET = """
federation = "demo:nuclei"
[network]
name = "unet"
width = 8
depth = 3
norm = "batch"
upsample = "deconv"
bias = true
dropout = 0.0
patch = 16
embedding = 384
layers = 8
heads = 6
mlp = 1536
"""


class HexagonSettings(NetworkSettings):
    """Of a plugin."""

    sides: int = 6
    width: int = 5


@pytest.fixture
def hexagon() -> Iterator[None]:
    register_settings("hexagon", HexagonSettings)
    yield
    del NETWORK_SETTINGS["hexagon"]


def network(**table: Any) -> NetworkSettings:
    return make_recipe({"federation": "x", "network": table}).network


def test_the_name_chooses_the_class() -> None:
    assert network() == Recipe(federation="x").network == UNetSettings()
    assert network(name="vit", patch=8) == NetworkSettings(name="vit", patch=8) == ViTSettings(patch=8)
    assert network(name="pretrained", model="conch") == PretrainedSettings(model="conch")
    assert type(NetworkSettings(width=2)) is UNetSettings
    assert type(network(name="hexagon", sides=5)) is UncheckedSettings


def test_what_is_known_before_anything_is_built() -> None:
    assert [network(depth=depth).multiple for depth in (1, 4)] == [2, 16]
    assert network(depth=2, poolings=[[1, 2, 2], [2, 2, 2]]).multiple == (2, 4, 4)
    assert network(name="vit", patch=8).multiple == 8
    assert network(name="pretrained", model="conch").multiple is None
    assert network(name="pretrained", weights="random").weights_file == "random"
    assert network().weights_file is None


def test_the_recipe_of_an_older_run_folder_goes_on(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(OLD_UNET)
    old = load_recipe(tmp_path / "old.toml")
    new = make_recipe({"federation": "demo:nuclei", "network": {"width": 8, "depth": 3, "norm": "batch"}})
    assert changed_keys(old, new) == []
    assert "patch" not in recipe_text(old)
    (tmp_path / "vit.toml").write_text(OLD_UNET.replace('"unet"', '"vit"').replace("layers = 8", "layers = 2"))
    old = load_recipe(tmp_path / "vit.toml")
    assert changed_keys(old, make_recipe({"federation": "demo:nuclei", "network": old.network.model_dump()})) == []
    assert changed_keys(old, new) == [
        *(
            "network.anisotropic",
            "network.depth",
            "network.embedding",
            "network.heads",
            "network.layers",
            "network.mlp",
        ),
        *("network.name", "network.patch"),
    ]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"patch": 8}, "network: patch needs name = 'vit', not 'unet'; change the name or leave patch out."),
        ({"name": "pretrained", "heads": 2}, "network: heads needs name = 'vit', not 'pretrained'"),
        ({"name": "vit", "weights": "x"}, "network: weights needs name = 'pretrained', not 'vit'"),
        ({"wdth": 8}, "unknown key 'network.wdth', did you mean 'width'?"),
        ({"zzz": 8}, "keys in [network]: name, width, norm, upsample, bias, dropout, activation, last_activation, "),
        ({"name": 3}, "network.name = 3 is not possible: it must be text"),
        ({"depth": 7}, "network.depth = 7 is not possible"),
    ],
)
def test_a_wrong_table_gets_one_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolyclinicError) as caught:
        network(**table)
    assert sentence in str(caught.value)


def test_a_network_whose_plugin_comes_later_is_checked_later(hexagon: None) -> None:
    early = UncheckedSettings(name="hexagon", sides=5)
    assert checked_network(early) == HexagonSettings(name="hexagon", sides=5)
    assert checked_network(UncheckedSettings(name="heptagon")) == UncheckedSettings(name="heptagon")
    recipe = Recipe(federation="x", network=early)
    assert with_checked_network(recipe).network == HexagonSettings(name="hexagon", sides=5)
    late = make_recipe({"federation": "x", "network": {"name": "hexagon", "sides": 5}})
    assert changed_keys(recipe, late) == []
    assert "width = 5" in recipe_text(recipe)
    for table, sentence in (
        ({"side": 5}, r"unknown key 'network\.side', did you mean 'sides'"),
        ({"sides": "many"}, r"network\.sides = 'many' is not possible: it must be a whole number"),
        ({"depth": 3}, "depth needs name = 'unet', not 'hexagon'"),
    ):
        with pytest.raises(PolyclinicError, match=sentence):
            checked_network(UncheckedSettings(name="hexagon", **table))


def test_two_networks_cannot_have_one_name(hexagon: None) -> None:
    register_settings("hexagon", HexagonSettings)
    with pytest.raises(PolyclinicError, match="Two networks are called 'unet'"):
        register_settings("unet", HexagonSettings)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"depth": 2, "poolings": [[1, 2, 2]]}, "poolings has 1 entries, and depth = 2 needs 2"),
        ({"depth": 1, "kernels": [[3, 3, 3]]}, "kernels has 1 entries, and depth = 1 needs 2"),
        ({"depth": 2, "poolings": [[2, 2], [1, 2, 2]]}, "one number for each axis"),
        ({"depth": 1, "kernels": [[3, 3], [2, 3]]}, "odd"),
        ({"name": "vit", "anisotropic": "auto"}, "anisotropic needs name = 'unet'"),
    ],
)
def test_sizes_of_axes_that_do_not_fit_get_a_sentence(table: dict[str, Any], words: str) -> None:
    with pytest.raises(PolyclinicError, match=words):
        network(**table)
