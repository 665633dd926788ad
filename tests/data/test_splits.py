from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.splits import Split, assign_splits, k_fold_splits, repeated_splits
from polyclinic.recipe import DataSettings

DEFAULT = DataSettings()


def federation(images: int = 1, unlabelled: int = 0, **cases: int) -> Federation:
    """Sites with a number of cases of some images each; the last ``unlabelled`` cases have no label."""
    sites = {
        site: tuple(
            Item(site, f"c{c}_{i}", (Path(f"{c}.png"),), Path("l.png") if c < count - unlabelled else None, f"c{c}")
            for c in range(count)
            for i in range(images)
        )
        for site, count in cases.items()
    }
    return Federation("test", Task(("background", "x"), 1, 2), sites, Path("root"))


def parts(split: Split, site: str = "a") -> Counter[str]:
    return Counter(part for (owner, _), part in split.of.items() if owner == site)


@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from([(0.6, 0.2, 0.2), (0.8, 0.0, 0.2), (1.0, 0.0, 0.0), (0.02, 0.49, 0.49), (0.98, 0.01, 0.01)]),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=40)
def test_shares_hold_and_no_case_is_cut(count: int, images: int, shares: tuple[float, float, float], seed: int) -> None:
    whole = federation(images, a=count)
    split = assign_splits(whole, DataSettings(split=shares), seed)
    of_case: dict[str, set[str]] = {}
    for item in whole.sites["a"]:
        of_case.setdefault(item.case, set()).add(split.of["a", item.name])
    assert all(len(found) == 1 for found in of_case.values())
    counts = Counter(found.pop() for found in of_case.values())
    assert counts["train"] >= 1
    for part, share in (("val", shares[1]), ("test", shares[2])):
        if share == 0:
            assert counts[part] == 0
        elif count >= 3:
            assert counts[part] >= 1
            assert abs(counts[part] - share * count) <= 1


def test_the_split_depends_on_the_seed_and_the_site_only() -> None:
    one, two = federation(a=20), federation(a=20, b=20)
    first = assign_splits(one, DEFAULT, 1)
    both = assign_splits(two, DEFAULT, 1)
    assert {key: part for key, part in both.of.items() if key[0] == "a"} == first.of
    assert assign_splits(one, DEFAULT, 2).of != first.of
    assert [both.of["a", f"c{c}_0"] for c in range(20)] != [both.of["b", f"c{c}_0"] for c in range(20)]
    assert parts(first) == {"train": 12, "val": 4, "test": 4}


def test_cases_without_a_label_train() -> None:
    whole = federation(a=10, unlabelled=5)
    for split in (assign_splits(whole, DEFAULT, 0), *k_fold_splits(whole, DEFAULT, 0, 5)):
        assert all(split.of["a", item.name] == "train" for item in whole.sites["a"] if item.label is None)
        assert parts(split)["test"] == 1


def with_splits(*named: tuple[str, str, str | None]) -> Federation:
    items = tuple(Item("a", name, (Path("x"),), Path("l"), case, part) for name, case, part in named)
    return Federation("test", Task(("background", "x"), 1, 2), {"a": items}, Path("root"))


def test_the_manifests_split_is_used_unless_the_recipe_says_not_to() -> None:
    whole = with_splits(("x", "1", "test"), ("y", "2", "test"), ("z", "3", "test"))
    assert parts(assign_splits(whole, DEFAULT, 0)) == {"test": 3}
    assert parts(assign_splits(whole, DataSettings(split_from="recipe"), 0)) == {"train": 1, "val": 1, "test": 1}


def test_a_manifest_that_cuts_a_case_or_forgets_an_image_is_refused() -> None:
    with pytest.raises(PolyclinicError, match=r"manifest\.csv: the case 'p' of site 'a' is in train and in val"):
        assign_splits(with_splits(("x", "p", "train"), ("y", "p", "val")), DEFAULT, 0)
    with pytest.raises(PolyclinicError, match="gives no split to the image 'y'"):
        assign_splits(with_splits(("x", "p", "train"), ("y", "q", None)), DEFAULT, 0)


def test_the_table_goes_to_text_and_back() -> None:
    split = Split({("b", "x, y"): "val", ("a", 'quo"te'): "train", ("a", "1"): "test"})
    text = split.to_csv()
    assert text.splitlines()[:2] == ["site,image,split", "a,1,test"]
    assert Split.from_csv(text).of == split.of
    assert Split.from_csv(text).hash == split.hash
    assert Split({**split.of, ("a", "1"): "train"}).hash != split.hash
    with pytest.raises(PolyclinicError, match="cannot use the row"):
        Split.from_csv("site,image,split\na,x,training\n")


def test_items_of_a_part() -> None:
    whole = federation(a=10)
    split = assign_splits(whole, DEFAULT, 0)
    chosen = split.items(whole, "a", "val")
    assert len(chosen) == 2
    assert all(split.of["a", item.name] == "val" for item in chosen)


def test_every_case_is_tested_once_over_the_folds() -> None:
    whole = federation(2, a=11, b=5)
    splits = k_fold_splits(whole, DEFAULT, 3, 5)
    for site, items in whole.sites.items():
        for item in items:
            assert sum(split.of[site, item.name] == "test" for split in splits) == 1
        for split in splits:
            for case in {item.case for item in items}:
                assert len({split.of[site, item.name] for item in items if item.case == case}) == 1
    for split in splits:  # val is a quarter of the 8 or 9 cases that are not tested, of two images each
        assert parts(split)["val"] == 4
    assert [split.hash for split in k_fold_splits(whole, DEFAULT, 3, 5)] == [split.hash for split in splits]


def test_repeats_draw_with_one_seed_after_another_whatever_the_manifest_says() -> None:
    whole = federation(2, a=11, b=5)
    first, second, third = repeated_splits(whole, DEFAULT, 3, 3)
    assert [first.hash, third.hash] == [assign_splits(whole, DEFAULT, seed).hash for seed in (3, 5)]
    assert len({split.hash for split in (first, second, third)}) == 3
    assert all(parts(split) == parts(first) for split in (second, third))
    fixed = with_splits(*((f"x{n}", f"x{n}", "train") for n in range(6)))
    assert all("test" in split.of.values() for split in repeated_splits(fixed, DEFAULT, 0, 2))


def test_too_few_cases_for_the_folds() -> None:
    with pytest.raises(PolyclinicError, match="site 'b' has 4 labelled cases, too few for 5 folds"):
        k_fold_splits(federation(a=9, b=4), DEFAULT, 0, 5)
