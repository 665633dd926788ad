from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.label_budget import choose_labels
from polyclinic.data.open_federation import open_federation
from polyclinic.data.phantoms import write_demo
from polyclinic.data.sitedata import SiteData
from polyclinic.data.splits import Split, assign_splits
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.observer import Observer
from polyclinic.recipe import DataSettings
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.local_execution import LocalExecution


def pictures(cases: dict[str, int], site: str = "north") -> tuple[Federation, Split]:
    """A federation of one site whose cases have so many training images."""
    items = tuple(
        Item(site, f"{case}-{number}", (Path("none.png"),), Path("none.png"), case)
        for case, count in cases.items()
        for number in range(count)
    )
    federation = Federation("one", Task(("background", "thing"), 1, 2), {site: items}, Path())
    return federation, Split({(site, item.name): "train" for item in items})


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    labelled=st.one_of(st.integers(1, 30), st.floats(0.05, 0.95)),
    seed=st.integers(0, 3),
)
def test_the_budget_is_spent_exactly_and_by_whole_cases_but_one(
    counts: list[int], labelled: int | float, seed: int
) -> None:
    cases = {f"case{number}": count for number, count in enumerate(counts)}
    federation, split = pictures(cases)
    found = choose_labels(federation, split, DataSettings(labelled=labelled), seed)
    assert found is not None
    total = sum(counts)
    wanted = labelled if isinstance(labelled, int) else max(1, round(labelled * total))
    assert len(found.of) == min(wanted, total)
    taken = Counter(name.rpartition("-")[0] for _, name in found.of)
    assert sum(taken[case] not in (0, count) for case, count in cases.items()) <= 1
    assert found == choose_labels(federation, split, DataSettings(labelled=labelled), seed)


def test_a_larger_budget_keeps_the_cases_of_a_smaller_one_and_seeds_differ() -> None:
    federation, split = pictures({f"case{n}": 2 for n in range(12)})
    names = [set(choose_labels(federation, split, DataSettings(labelled=n), 0).of) for n in (4, 9, 20)]  # type: ignore[union-attr]
    assert names[0] < names[1] < names[2]
    other = choose_labels(federation, split, DataSettings(labelled=4), 1)
    assert other is not None
    assert set(other.of) != names[0]


def test_the_draw_has_a_seed_of_its_own_and_the_recipe_s_by_default() -> None:
    federation, split = pictures({f"case{n}": 2 for n in range(12)})
    by_seed = [choose_labels(federation, split, DataSettings(labelled=4), seed) for seed in (0, 1)]
    own = [choose_labels(federation, split, DataSettings(labelled=4, label_seed=1), seed) for seed in (0, 1)]
    first, second = (labels for labels in by_seed if labels is not None)
    assert own[0] == own[1]
    assert own[0] is not None
    assert own[0].of == second.of != first.of
    assert first.to_csv().splitlines()[0] == "site,image,slices"
    lines = own[0].to_csv().splitlines()
    assert lines[0] == "site,image,slices,label_seed"
    assert all(line.endswith(",1") for line in lines[1:])
    with pytest.raises(PolyclinicError, match=r"data: label_seed draws the images of labelled, which is not set"):
        make_recipe({"federation": "f", "data": {"label_seed": 1}})


def test_slices_of_volumes_are_counted_and_the_last_volume_is_split(tmp_path: Path) -> None:
    write_demo("prostate", tmp_path / "f", cases=4)
    federation = open_federation(str(tmp_path / "f"), DataSettings())
    data = DataSettings(labelled=13, split_from="recipe", split=(1.0, 0.0, 0.0))
    split = assign_splits(federation, data, 0)
    found = choose_labels(federation, split, data, 0)
    assert found is not None
    by_site: dict[str, list[int]] = {}
    for (site, _), slices in found.of.items():
        by_site.setdefault(site, []).append(10 if slices is None else len(slices))
    assert all(sorted(counts) == [3, 10] for counts in by_site.values())


def small(folder: Path, method: str = "fedavg", **data: object) -> dict[str, object]:
    return {
        "federation": str(folder), "method": method, "data": {"size": [16, 16], **data},
        "network": {"width": 2, "depth": 1}, "training": {"rounds": 1, "batch_size": 2},
        "evaluation": {"metrics": ["dice"]},
    }  # fmt: skip


def test_labels_outside_the_budget_are_never_read(tmp_path: Path) -> None:
    """They are made unreadable: a run that touched one would stop."""
    write_demo("nuclei", tmp_path / "f", cases=6, size=16)
    recipe = make_recipe(small(tmp_path / "f", labelled=3))
    federation = open_federation(recipe.federation, recipe.data)
    split = assign_splits(federation, recipe.data, recipe.seed)
    chosen = choose_labels(federation, split, recipe.data, recipe.seed)
    assert chosen is not None
    broken = 0
    for site, items in federation.sites.items():
        for item in items:
            if split.of[site, item.name] == "train" and (site, item.name) not in chosen.of:
                assert item.label is not None
                item.label.write_bytes(b"no label")
                broken += 1
    assert broken > 8
    run = polyclinic.run(recipe, out=tmp_path / "run")
    listed = (run.folder / "labelled.csv").read_text().splitlines()
    assert listed[0] == "site,image,slices"
    assert len(listed) == 1 + 3 * len(federation.sites)
    with pytest.raises(PolyclinicError, match="cannot be read"):
        polyclinic.run(make_recipe(small(tmp_path / "f")), out=tmp_path / "all")


def test_classes_must_be_declared_where_few_labels_may_be_read(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", cases=2, size=16)
    (tmp_path / "f" / "federation.toml").unlink()
    assert len(open_federation(str(tmp_path / "f")).task.classes) == 2
    with pytest.raises(PolyclinicError, match=r"data\.labelled allows few labels.*write 'classes' in federation\.toml"):
        open_federation(str(tmp_path / "f"), DataSettings(labelled=1))


def test_a_federation_without_any_label_is_refused(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", cases=3, size=16)
    for path in (tmp_path / "f").glob("*/labels/*"):
        path.unlink()
    with pytest.raises(PolyclinicError, match=r"No training image of hospital-a, .* has a label; add masks"):
        polyclinic.run(make_recipe(small(tmp_path / "f", "fixmatch")), out=tmp_path / "run")


def test_a_budget_that_a_site_cannot_fill_is_said_once(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", cases=6, size=16)
    recipe = make_recipe({**small(tmp_path / "f", labelled=9), "protocol": {"kind": "leave-one-site-out"}})
    said: list[str] = []

    class Listener(Observer):
        def on_message(self, text: str) -> None:
            said.append(text)

    polyclinic.run(recipe, out=tmp_path / "run", observer=Listener())
    warned = [text for text in said if "labelled training images" in text]
    assert warned[0] == (
        "warning: hospital-b has 8 labelled training images (or slices), fewer than data.labelled = 9."
    )
    assert len(warned) == len(set(warned)) == 4


@pytest.mark.parametrize("kind", ["leave-one-site-out", "k-fold"])
def test_labels_of_earlier_parts_are_not_held(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same images with other labels are other images: at most one set of each site stays in memory."""
    write_demo("nuclei", tmp_path / "f", cases=6, size=16)
    held: list[int] = []
    real = LocalExecution._data

    def spy(self: LocalExecution, part: ProtocolPart) -> dict[str, SiteData]:
        data = real(self, part)
        held.append(len(self._images))
        return data

    monkeypatch.setattr(LocalExecution, "_data", spy)
    recipe = {**small(tmp_path / "f", labelled=2, split_from="recipe"), "protocol": {"kind": kind, "folds": 3}}
    polyclinic.run(make_recipe(recipe), out=tmp_path / "run")
    assert held == [4] * (4 if kind == "leave-one-site-out" else 3)


def test_hidden_slices_of_a_volume_have_no_label(tmp_path: Path) -> None:
    from polyclinic.data.build_imageset import build_imageset

    write_demo("prostate", tmp_path / "f", cases=2)
    data = DataSettings(size=(16, 16), labelled=4, split_from="recipe", split=(1.0, 0.0, 0.0))
    federation = open_federation(str(tmp_path / "f"), data)
    split = assign_splits(federation, data, 0)
    labels = choose_labels(federation, split, data, 0)
    assert labels is not None
    site = next(iter(federation.sites))
    images = build_imageset(labels.visible(federation.sites[site], split), federation, data)
    assert int(images.labelled.sum()) == 4
    assert not images.batch((~images.labelled).nonzero().flatten())[1].any()
    full = build_imageset(federation.sites[site], federation, data)
    rows = images.labelled.nonzero().flatten()
    np.testing.assert_array_equal(images.batch(rows)[1], full.batch(rows)[1])
