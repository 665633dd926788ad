from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation
from polyclinic.data.open_federation import open_federation
from polyclinic.evaluation.protocols import part_names, protocol_parts, site_part, split_files, whole_part
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import make_recipe
from support import write_tiny_federation


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return open_federation(
        write_tiny_federation(tmp_path_factory.mktemp("protocols"), {"a": 6, "b": 5, "c": 4}, size=9)
    )


def recipe_for(kind: str, **data: object) -> Recipe:
    return make_recipe({"federation": "x", "protocol": {"kind": kind, "folds": 3, "repeats": 2}, "data": data})


def images(part_split: dict[tuple[str, str], str], site: str, name: str) -> set[str]:
    return {image for (owner, image), split in part_split.items() if (owner, split) == (site, name)}


def test_own_test_is_one_training_of_all_sites(federation: Federation) -> None:
    (part,) = protocol_parts(federation, recipe_for("own-test"))
    assert (part.name, part.train_sites, part.unseen, part.labels) == ("all", ("a", "b", "c"), None, None)
    assert part == whole_part(federation, recipe_for("own-test"))


def test_every_site_is_left_out_once_and_then_tests_with_everything(federation: Federation) -> None:
    whole = whole_part(federation, recipe_for("own-test")).split.of
    parts = protocol_parts(federation, recipe_for("leave-one-site-out"))
    assert [part.unseen for part in parts] == ["a", "b", "c"]
    for part in parts:
        assert part.name == f"without-{part.unseen}"
        assert part.train_sites == tuple(site for site in "abc" if site != part.unseen)
        assert images(part.split.of, part.unseen, "test") == {item.name for item in federation.sites[part.unseen]}
        assert all(whole[key] == split for key, split in part.split.of.items() if key[0] != part.unseen)


def test_folds_test_every_image_once(federation: Federation) -> None:
    parts = protocol_parts(federation, recipe_for("k-fold"))
    assert [part.name for part in parts] == ["fold-1", "fold-2", "fold-3"]
    for site, items in federation.sites.items():
        tested = [image for part in parts for image in images(part.split.of, site, "test")]
        assert sorted(tested) == sorted(item.name for item in items)


def test_repeats_are_trainings_on_splits_of_their_own(federation: Federation) -> None:
    parts = protocol_parts(federation, recipe_for("repeated-splits"))
    assert [(part.name, part.train_sites) for part in parts] == [(f"repeat-{n}", ("a", "b", "c")) for n in (1, 2)]
    assert parts[0].split == whole_part(federation, recipe_for("own-test")).split != parts[1].split
    assert list(split_files(parts)) == ["split-repeat-1.csv", "split-repeat-2.csv"]


@pytest.mark.parametrize("kind", ["own-test", "leave-one-site-out", "k-fold", "repeated-splits"])
def test_a_server_and_a_site_know_the_same_parts(federation: Federation, kind: str) -> None:
    recipe = recipe_for(kind, labelled=2)
    parts = protocol_parts(federation, recipe)
    assert part_names(recipe, list(federation.sites)) == {part.name: part.unseen for part in parts}
    for part in parts:
        for site in federation.sites:
            alone = Federation(federation.name, federation.task, {site: federation.sites[site]}, federation.root, False)
            known = site_part(alone, recipe, site, part.name)
            expected = {key: split for key, split in part.split.of.items() if key[0] == site}
            assert known.split.of == expected
            assert known.unseen == (site if site == part.unseen else None)
            visible = [item.label for item in part.items(federation, site)]
            assert [item.label for item in known.items(alone, site)] == visible


def test_a_budget_hides_labels_of_training_images_unless_a_method_reads_all(federation: Federation) -> None:
    recipe = recipe_for("own-test", labelled=1)
    (part,), (whole,) = protocol_parts(federation, recipe), protocol_parts(federation, recipe, all_labels=True)
    train = images(part.split.of, "a", "train")
    labelled = {item.name for item in part.items(federation, "a") if item.label is not None}
    assert len(labelled & train) == 1
    assert part.items(federation, "a") != whole.items(federation, "a") == tuple(federation.sites["a"])


def test_parts_that_are_not_there_get_a_sentence(federation: Federation) -> None:
    for kind, expected in (
        ("own-test", "all"),
        ("k-fold", "fold-N"),
        ("leave-one-site-out", "without-SITE"),
        ("repeated-splits", "repeat-N"),
    ):
        with pytest.raises(PolyclinicError, match=f"The protocol {kind} has no part 'fold-9', expected {expected}"):
            site_part(federation, recipe_for(kind), "a", "fold-9")
    alone = Federation("x", federation.task, {"a": federation.sites["a"]}, Path(), False)
    for refused in (lambda recipe: protocol_parts(alone, recipe), lambda recipe: part_names(recipe, ["a"])):
        with pytest.raises(PolyclinicError, match="needs two sites or more"):
            refused(recipe_for("leave-one-site-out"))


def test_one_file_where_all_parts_share_it(federation: Federation) -> None:
    assert list(split_files(protocol_parts(federation, recipe_for("own-test")))) == ["split.csv"]
    folds = split_files(protocol_parts(federation, recipe_for("k-fold", labelled=1)))
    assert {name for name in folds if name.startswith("split")} == {f"split-fold-{number}.csv" for number in (1, 2, 3)}
    assert any(name.startswith("labelled") for name in folds)
