"""Advice as a recipe that runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polyclinic.data.check import check_federation
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.advice import Advice, advise
from polyclinic.preview.advice_recipe import advised_recipe, what_leaves
from polyclinic.preview.evidence import load_evidence
from polyclinic.recipe.files import load_recipe


@pytest.fixture
def advice(tiny_federation: Path) -> Advice:
    return advise(FederationTraits.of(check_federation(tiny_federation)), load_evidence())


def test_the_recipe_has_the_advised_settings(advice: Advice, tiny_federation: Path, tmp_path: Path) -> None:
    traits = replace(advice.traits, polarity="mixed", size=(256, 256), width=2.0)
    text = advised_recipe(advise(traits, load_evidence()), str(tiny_federation), True, 3)
    path = tmp_path / "advised.toml"
    path.write_text(text)
    recipe = load_recipe(path)
    assert (recipe.federation, recipe.method) == (str(tiny_federation.resolve()), "fedavg")
    assert (recipe.data.patch, recipe.data.foreground, recipe.data.intensity) == ((96, 96), 0.5, "site")
    assert (recipe.data.labelled, recipe.protocol.kind) == (3, "leave-one-site-out")


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "täglich"])
def test_any_folder_name_is_written_so_that_it_is_read_again(advice: Advice, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    path = tmp_path / "advised.toml"
    path.write_text(advised_recipe(advice, str(folder), False, None), encoding="utf-8")
    assert load_recipe(path).federation == str(folder.resolve())


def test_an_embedded_federation_keeps_its_name(advice: Advice) -> None:
    assert 'federation = "demo:nuclei"' in advised_recipe(advice, "demo:nuclei", False, None)


def test_what_leaves_is_said_in_bytes_and_words(advice: Advice, tiny_federation: Path) -> None:
    text = advised_recipe(advice, str(tiny_federation), False, None)
    assert what_leaves(text, "fedavg").endswith("a round: weights")
    assert "mean embedding of each class" in what_leaves(text, "fedbcs")
    assert "that stay" in what_leaves(text, "fedbn")
    assert what_leaves(text, "central") == "every image and label"
