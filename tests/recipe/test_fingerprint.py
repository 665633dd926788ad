"""One fingerprint for what a site is asked to do, whatever a text looks like, and another for anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_support import png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.methods.expression import parse_method, settled_parts
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import deepest_key, load_recipe, make_recipe, parse_recipe, recipe_text
from polyclinic.recipe.fingerprint import NOT_COVERED, AskedRecipe, differing_keys, hashed, read_asked, recipe_sha256
from polyclinic.runs.folder import CHANGEABLE_KEYS


def test_the_text_of_a_file_and_the_text_that_travels_have_one_fingerprint() -> None:
    recipe = load_recipe("demo-nuclei")
    asked = read_asked(recipe_text(recipe))
    assert asked.sha256 == recipe_sha256(recipe)
    assert asked.method == recipe.method
    assert len(asked.sha256) == len(asked.text_sha256) == 64
    assert asked.sha256 != asked.text_sha256
    assert read_asked("method = 'fedavg'").sha256 == read_asked("seed = 0\nmethod = ' fedavg '").sha256


@pytest.mark.parametrize(
    "change",
    [
        {"federation": "/elsewhere"},
        {"tracking": {"tensorboard": True}},
        {"engine": {"name": "flower", "deadline": 5, "device": "cuda:1", "threads": 2}},
        {"data": {"sites": ["north"], "cache": "/tmp/x"}},
        {"training": {"quorum": 1}},
        {"evaluation": {"units": "mm"}},
    ],
)
def test_what_the_site_decides_or_a_run_may_change_is_left_out(change: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"federation": "demo:nuclei"}
    assert recipe_sha256(make_recipe({**plain, **change})) == recipe_sha256(make_recipe(plain))


@pytest.mark.parametrize(
    "change",
    [
        {"method": "fedprox"},
        {"method": "fedavg+privacy(noise=1)"},
        {"seed": 1},
        {"plugins": ["mine"]},
        {"training": {"rounds": 21}},
        {"training": {"local_epochs": 2}},
        {"data": {"split": [0.5, 0.25, 0.25]}},
        {"data": {"case_pattern": "(a)"}},
        {"protocol": {"kind": "k-fold"}},
        {"evaluation": {"metrics": ["dice"]}},
        {"network": {"width": 3}},
        {"network": {"name": "pretrained", "model": "resnet18", "weights": "random"}},
        {"network": {"name": "pretrained", "model": "resnet18", "sha256": "ab" * 32}},
        {"policies": {"buffers": "keep"}},
    ],
)
def test_all_else_is_covered(change: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"federation": "demo:nuclei"}
    assert recipe_sha256(make_recipe({**plain, **change})) != recipe_sha256(make_recipe(plain))


def test_what_a_resumed_run_may_change_is_not_covered() -> None:
    """Else a server could not go on with --resume and another deadline."""
    for key in CHANGEABLE_KEYS:
        assert any(key == left_out or key.startswith(f"{left_out}.") for left_out in NOT_COVERED), key


def test_every_key_that_is_left_out_exists() -> None:
    table = make_recipe({"federation": "x"}).model_dump()
    for key in NOT_COVERED:
        section, _, name = key.rpartition(".")
        assert key == "network.weights" or name in (table[section] if section else table), key


@pytest.mark.parametrize(
    "text", [None, 5, "not toml [", "colour = 1", "network = 5", "a = " + "[" * 100_000, "x" * (2**20 + 1), "\ud800"]
)
def test_what_is_no_recipe_has_no_fingerprint_and_raises_nothing(text: Any) -> None:
    asked = read_asked(text)
    assert (asked.sha256, asked.method) == ("", "")
    assert bool(asked.text_sha256) == isinstance(text, str)
    assert AskedRecipe().audit_fields() == {"recipe_sha256": "", "recipe_text_sha256": "", "method": ""}


def test_a_path_in_a_server_s_recipe_reads_no_file(tmp_path: Path) -> None:
    """The hash of a file that the server names would leave with the sentence of a refusal."""
    secret = tmp_path / "secret"
    texts = []
    for content in ("one", "two"):
        secret.write_text(content)
        texts.append(read_asked(f'[network]\nname = "pretrained"\nmodel = "resnet18"\nweights = "{secret}"').sha256)
    assert texts[0] == texts[1] != ""


def test_keys_that_differ_are_named() -> None:
    first = Recipe(federation="x")
    other = make_recipe({"federation": "y", "training": {"lr": 0.5, "rounds": 3}, "engine": {"deadline": 3}})
    assert differing_keys(recipe_text(first), recipe_text(other)) == ["training.lr", "training.rounds"]


@pytest.mark.parametrize("text", ["a." * 40_000 + "a=1", "[" + "a." * 40_000 + "a]", '"a".' * 20_000 + "a=1"])
def test_a_text_on_which_a_toml_parser_would_fill_the_memory_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(PolyclinicError, match="more than 30 parts"):
        parse_recipe(text, "the recipe")
    assert read_asked(text).sha256 == ""
    assert len(read_asked(text).text_sha256) == 64


@pytest.mark.parametrize(
    "text",
    [
        r'"\\"".' + "a." * 40_000 + "a=1",
        "a" + '."="' * 20_000 + "=1",
        "x = ['''\n\"''', {" + "a." * 40_000 + "a=1}]",
    ],
)
def test_quotes_hide_no_deep_key(text: str) -> None:
    with pytest.raises(PolyclinicError, match="more than"):
        parse_recipe(text, "the recipe")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fedavg+privacy(noise=1\ne-9x=1)", "fedavg+privacy(noise=1e-9\nx=1)"),
        ("fedavg+proximal(mu=10\nx=1)", "fedavg+proximal(mu=1\n0x=1)"),
        ("fedavg+proximal(mu=1#0)", "fedavg+proximal(mu=1 #0)"),
        ("fedavg+proximal(mu=1\u00a00)", "fedavg+proximal(mu=1\u30000)"),
        ("fedavg+proximal(mu=1\t)", "fedavg+proximal(mu=1\r)"),
    ],
)
def test_a_method_is_one_plain_line(first: str, second: str) -> None:
    """The value of ``mu=1``, a line's end and ``0x=1`` is 1, and without its white space the text says 10."""
    for method in (first, second):
        with pytest.raises(PolyclinicError, match="on one line"):
            make_recipe({"federation": "x", "method": method})


@given(st.text(alphabet="a1e-+=(), \"'[]", max_size=12), st.text(alphabet="a1e-+=(), \"'[]", max_size=12))
def test_methods_with_one_fingerprint_are_one_method(first: str, second: str) -> None:
    """Or neither can be read: spaces beside signs mean nothing, all else does."""

    def contents(values: str) -> object:
        try:
            return settled_parts(parse_method(f"fedavg+proximal(mu={values})"))
        except PolyclinicError:
            return None

    recipes = [Recipe(federation="x", method=f"fedavg+proximal(mu={values})") for values in (first, second)]
    if recipe_sha256(recipes[0]) == recipe_sha256(recipes[1]):
        assert contents(first) == contents(second)


def test_spaces_beside_signs_change_no_fingerprint() -> None:
    spaced, plain = " fedavg + proximal( mu = 0.1 ) - proximal", "fedavg+proximal(mu=0.1)-proximal"
    assert recipe_sha256(Recipe(federation="x", method=spaced)) == recipe_sha256(Recipe(federation="x", method=plain))
    words = [Recipe(federation="x", method=f'feduv(target="{text}")') for text in ("a b", "ab", "a - b", "a-b")]
    assert len({recipe_sha256(recipe) for recipe in words}) == 4


def test_numbers_in_lists_and_texts_are_no_deep_keys() -> None:
    assert deepest_key('a.b = [0.1, 0.2, 0.3] # a.b.c\nc = "1.2.3.4.5"\n') <= 2


def test_whatever_a_server_writes_is_named_by_its_hash_alone(tiny_federation: Path) -> None:
    """A number of thousands of digits is valid TOML, and JSON cannot write it."""
    text = recipe_text(png_recipe(tiny_federation)).replace("seed = 0", "seed = 0x" + "f" * 4000)
    assert "ffff" in text
    assert read_asked(text).sha256 == ""
    assert read_asked(text).text_sha256 == hashed(text).text_sha256 != ""
    assert hashed(5).text_sha256 == ""
