from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import changed_keys, load_recipe, make_recipe, recipe_text, shipped_recipes


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_everything_but_the_federation_has_a_default(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, 'federation = "demo:nuclei"'))
    assert recipe == Recipe(federation="demo:nuclei")
    with pytest.raises(PolyclinicError, match="'federation' is missing"):
        load_recipe(write(tmp_path, "seed = 1"))


def test_the_recipe_of_the_readme_is_accepted(tmp_path: Path) -> None:
    text = """
        federation = "demo:nuclei"
        method = "fedavg"
        seed = 0
        [data]
        size = [64, 64]
        intensity = "zero-one"
        [network]
        name = "unet"
        width = 16
        depth = 4
        norm = "instance"
        [training]
        rounds = 20
        local_epochs = 1
        batch_size = 6
        optimizer = "adam"
        lr = 1e-3
        [protocol]
        kind = "own-test"
        [engine]
        name = "inprocess"
    """
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.data.size == (64, 64)
    assert recipe.training.lr == 1e-3


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_shipped_recipes_are_valid(name: str) -> None:
    load_recipe(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('federation = "x"\nmetod = "fedavg"', ["unknown key 'metod'", "did you mean 'method'?"]),
        ('federation = "x"\n[training]\nround = 3', ["unknown key 'training.round'", "'rounds'"]),
        ('federation = "x"\n[training]\nlr = -1', ["training.lr = -1", "greater than 0"]),
        ('federation = "x"\n[training]\noptimizer = "lion"', ["training.optimizer = 'lion'", "adamw"]),
        ('federation = "x"\n[data]\nsize = [64]', ["data.size"]),
        ('federation = "x"\n[data]\npatch = [0, 8]', ["data.patch", "0"]),
        ('federation = "x"\n[training]\nbetas = [2, 3]', ["training.betas"]),
        ('federation = "x"\ntraining = 3', ["training = 3", "it is a table; write [training]"]),
        ("federation = ", ["recipe.toml", "TOML"]),
    ],
)
def test_a_wrong_recipe_gets_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(PolyclinicError) as caught:
        load_recipe(write(tmp_path, text))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.sites=north", "data.sites = 'north' is not possible: it must be a list, such as [north]."),
        ("data.sites=[]", "data.sites = [] is not possible: it must be a list of at least 1 value."),
        ("data.sites=[1]", "data.sites: 1 is not possible: it must be text (in quotes"),
        ("data.size=[64]", "data.size = [64] is not possible: it must be a list of at least 2 values, or 'auto'."),
        ("data.patch=[0,8]", "data.patch: 0 is not possible: it must be greater than or equal to 1."),
        ("training.lr=inf", "training.lr = inf is not possible: it must be a finite number."),
        ("training.lr=high", "training.lr = 'high' is not possible: it must be a number."),
        ("training.betas=[0.9]", "training.betas = [0.9] is not possible: it must be a longer list."),
        ("data.memory_limit_mb=nan", "data.memory_limit_mb = nan is not possible: it must be a finite number."),
        (
            'network={name="pretrained",sha256="x"}',
            "network.sha256 = 'x' is not possible: it must be text that matches ^[0-9a-f]{64}$.",
        ),
    ],
)
def test_a_wrong_type_is_said_in_our_own_words(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(PolyclinicError) as caught:
        load_recipe(write(tmp_path, 'federation = "demo:nuclei"'), [override])
    assert words in str(caught.value)
    assert "nput should" not in str(caught.value)


def test_two_wrong_keys_are_not_mixed_up(tmp_path: Path) -> None:
    path = write(tmp_path, 'federation = "x"\n[training]\nlr = "x"\nmomentum = "x"\nloss = "x"')
    with pytest.raises(PolyclinicError, match=r"training\.(lr|loss) = 'x' is not possible") as caught:
        load_recipe(path)
    assert ("'dice-ce'" in str(caught.value)) != ("a number" in str(caught.value))


def test_lists_of_overrides_take_bare_words(tmp_path: Path) -> None:
    path = write(tmp_path, 'federation = "demo:nuclei"')
    for text in ("[north, south-2]", '["north", south-2]', '["north", "south-2"]', "[north,south-2,]"):
        assert load_recipe(path, [f"data.sites={text}"]).data.sites == ("north", "south-2")
    assert load_recipe(path, ['data.sites=["a, b", c]']).data.sites == ("a, b", "c")
    assert load_recipe(path, ["data.size=[32, 48]"]).data.size == (32, 48)


def test_overrides_reach_any_key_and_take_words_as_strings(tmp_path: Path) -> None:
    path = write(tmp_path, 'federation = "demo:nuclei"\n[training]\nrounds = 9')
    overrides = ["training.rounds=5", "network.norm=batch", "data.size=[32, 48]", "seed=7", "method=fedprox(mu=0.1)"]
    recipe = load_recipe(path, overrides)
    assert recipe.training.rounds == 5
    assert recipe.network.norm == "batch"
    assert recipe.data.size == (32, 48)
    assert (recipe.seed, recipe.method) == (7, "fedprox(mu=0.1)")
    assert load_recipe(path, overrides, method="fedbn").method == "fedbn"


@pytest.mark.parametrize("text", ["training.rounds", "=3", "seed.x=3", "training.rouns=3"])
def test_a_wrong_override_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PolyclinicError):
        load_recipe(write(tmp_path, 'federation = "demo:nuclei"\nseed = 1'), [text])


def test_resolved_text_reads_back_as_the_same_recipe(tmp_path: Path) -> None:
    recipe = make_recipe({"federation": "demo:nuclei", "data": {"patch": [32, 32]}, "training": {"patience": 3}})
    text = recipe_text(recipe)
    assert load_recipe(write(tmp_path, text)) == recipe
    assert tomllib.loads(text)["training"]["batch_size"] == 6


def test_changed_keys_names_what_differs() -> None:
    one = make_recipe({"federation": "demo:nuclei"})
    other = make_recipe({"federation": "demo:nuclei", "seed": 2, "training": {"lr": 0.1}})
    assert changed_keys(one, other) == ["seed", "training.lr"]


def test_a_federation_beside_the_recipe_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    path = write(tmp_path, 'federation = "mine"\nplugins = ["idea.py"]')
    (tmp_path / "idea.py").touch()
    monkeypatch.chdir("/")
    recipe = load_recipe(path)
    assert recipe.federation == str(tmp_path / "mine")
    assert recipe.plugins == (str(tmp_path / "idea.py"),)


def test_an_unknown_recipe_suggests_a_shipped_one() -> None:
    with pytest.raises(PolyclinicError, match="did you mean 'demo-nuclei'"):
        load_recipe("demo-nuclie")
