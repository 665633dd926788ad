"""Answers of a site cannot be subtracted: attacks of a server that chooses nested sets of cases, and honest runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flower_support import initial_weights, make_handler, png_recipe, reason_of, request_for, site_in_process
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.imageset import Sample
from polyclinic.deploy.site import case_sets
from polyclinic.deploy.site.admission import RefusedError
from polyclinic.deploy.site.case_sets import CaseSets
from polyclinic.deploy.site.request_handler import RequestHandler
from polyclinic.exchange.messages import Broadcast, Evaluation, Message, Update
from polyclinic.recipe import Recipe
from support import write_tiny_federation


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_federation(tmp_path_factory.mktemp("thirty"), {"north": 30})


@pytest.fixture(scope="module")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_federation(tmp_path_factory.mktemp("sixty"), {"north": 60})


def cases_split(train: int, val: int, test: int) -> dict[str, Any]:
    """Shares that give these numbers of cases."""
    total = train + val + test
    return {"split": [train / total, val / total, test / total]}


class Attacker:
    """A server that asks one site, each time in a run of a new name, with the same weights."""

    def __init__(self, handler: RequestHandler, federation: Path, **sections: Any) -> None:
        self.handler, self.federation, self.sections = handler, federation, sections
        self.weights = initial_weights(self.recipe())
        self.runs = 0

    def recipe(self, **sections: Any) -> Recipe:
        merged = dict(self.sections)
        for name, section in sections.items():
            merged[name] = {**merged.get(name, {}), **section} if isinstance(section, dict) else section
        return png_recipe(self.federation, merged.pop("method", "fedavg"), **merged)

    def ask(self, act: str, part: str = "all", split: str = "", **sections: Any) -> Message:
        self.runs += 1
        asked = request_for(act, self.recipe(**sections), Broadcast(0, self.weights), part, split)
        return self.handler.answer(replace(asked, run=f"run-{self.runs}"))


def attacker(tmp_path: Path, federation: Path, policy: str = "", **sections: Any) -> Attacker:
    return Attacker(make_handler(tmp_path / "home", federation, policy=policy), federation, **sections)


def assert_refused(reply: Message, *words: str) -> None:
    reason = reason_of(reply)
    assert reason.startswith("refused: the ")
    for word in (*words, "(minimum_images)"):
        assert word in reason
    assert ("let a round draw all cases" if "draws" in reason else 'split = "own"') in reason
    assert "case0" not in reason


def test_updates_over_nested_training_sets_cannot_be_subtracted(tmp_path: Path, thirty: Path) -> None:
    server = attacker(tmp_path, thirty)
    assert isinstance(server.ask("train", data=cases_split(18, 6, 6)), Update)
    for other in (cases_split(17, 7, 6), cases_split(19, 5, 6), cases_split(14, 10, 6)):
        assert_refused(server.ask("train", data=other), "training cases differ in", "asks for 5")
    assert isinstance(server.ask("train", data=cases_split(18, 6, 6)), Update)
    assert isinstance(server.ask("train", data=cases_split(13, 11, 6)), Update)
    # A set between the two that were answered for is too near to one of them.
    assert_refused(server.ask("train", data=cases_split(16, 8, 6)), "differ in 2 cases from the 18")


@pytest.mark.parametrize("split", ["val", "test"])
def test_scores_over_nested_sets_cannot_be_subtracted(split: str, tmp_path: Path, thirty: Path) -> None:
    server = attacker(tmp_path, thirty)
    first = server.ask("evaluate", split="test", data=cases_split(16, 7, 7))
    assert isinstance(first, Evaluation)
    assert first.images == 7
    # The first seven cases of the seeded order were tested; now the first eight are, or are validated.
    numbers = {"test": (15, 7, 8), "val": (22, 8, 0)}[split]
    reply = server.ask("evaluate", split=split, data=cases_split(*numbers))
    assert_refused(reply, "the 8 scored cases differ in 1 case from the 7 of an earlier answer")
    again = server.ask("evaluate", split="test", data=cases_split(16, 7, 7))
    assert isinstance(again, Evaluation)
    assert again.stats == first.stats


def test_updates_over_nested_label_budgets_cannot_be_subtracted(tmp_path: Path, thirty: Path) -> None:
    for number, method in enumerate(("fedavg", "fixmatch")):
        server = attacker(tmp_path / str(number), thirty, method=method, training={"steps_per_epoch": 12})
        assert isinstance(server.ask("train", data={"labelled": 8}), Update)
        for budget in (7, 9, 12):
            assert_refused(server.ask("train", data={"labelled": budget}), "labelled training cases differ in")
        assert isinstance(server.ask("train", data={"labelled": 13}), Update)


def test_updates_over_batches_that_differ_in_an_image_cannot_be_subtracted(tmp_path: Path, thirty: Path) -> None:
    """One step on the first eight images of a seeded order, then on the first nine of the same."""
    server = attacker(tmp_path, thirty, training={"steps_per_epoch": 1})
    assert isinstance(server.ask("train", training={"batch_size": 8}), Update)
    assert_refused(
        server.ask("train", training={"batch_size": 9}), "the 9 training cases that a round draws differ in 1 case"
    )
    assert isinstance(server.ask("train", training={"batch_size": 13}), Update)


def test_a_run_whose_next_round_would_be_refused_is_refused_before_anything_leaves(
    tmp_path: Path, thirty: Path
) -> None:
    """A round draws 16 of 18 training cases: a site that had trained one such round could not train all 18 later."""
    server = attacker(tmp_path, thirty, training={"steps_per_epoch": 2, "rounds": 3})
    assert_refused(
        server.ask("train", training={"batch_size": 8}),
        "the 16 of 18 training cases that this round draws",
        "differ in",
    )
    whole = {"batch_size": 9, "steps_per_epoch": 2, "rounds": 3}
    assert isinstance(server.ask("train", training=whole), Update), "nothing has left, so nothing stands in its way"
    single = attacker(tmp_path / "other", thirty, training={"steps_per_epoch": 2, "rounds": 1})
    assert isinstance(single.ask("train", training={"batch_size": 8}), Update), "there is no next round"


def test_folds_with_enough_cases_train_validate_and_test(tmp_path: Path, sixty: Path) -> None:
    server = attacker(tmp_path, sixty, protocol={"kind": "k-fold", "folds": 5})
    for fold in range(1, 6):
        assert isinstance(server.ask("train", f"fold-{fold}"), Update)
        for split, cases in (("val", 12), ("test", 12)):
            scores = server.ask("evaluate", f"fold-{fold}", split)
            assert isinstance(scores, Evaluation), scores
            assert scores.images == cases


def test_seeds_with_enough_cases_train_validate_and_test(tmp_path: Path, sixty: Path) -> None:
    server = attacker(tmp_path, sixty)
    for seed in range(3):
        assert isinstance(server.ask("train", seed=seed), Update)
        for split in ("val", "test"):
            assert isinstance(server.ask("evaluate", split=split, seed=seed), Evaluation)


def test_a_small_site_with_a_split_of_its_own_takes_part_whatever_the_seed(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "small", {"north": 11})
    shared, own = (
        attacker(tmp_path / name, federation, f'split = "{name}"', data={"labelled": 5}) for name in ("recipe", "own")
    )
    refused = [seed for seed in range(6) if not isinstance(shared.ask("train", seed=seed), Update)]
    assert refused
    updates = [own.ask("train", seed=seed) for seed in range(6)]
    assert all(isinstance(update, Update) for update in updates), updates
    # The same cases, and still another order of the batches for another seed.
    assert any(
        not torch.equal(updates[0].weights[name], updates[1].weights[name])  # type: ignore[union-attr]
        for name in updates[0].weights  # type: ignore[union-attr]
    )
    assert_refused(own.ask("train", data={"labelled": 6}), "the 6 labelled training cases differ in 1 case")


def test_an_own_split_leaves_the_manifest_s_as_it_is(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "listed", {"north": 9})
    rows = [f"north,case{number},{'train' if number < 6 else 'test'}" for number in range(9)]
    (federation / "manifest.csv").write_text("\n".join(("site,image,split", *rows)) + "\n")
    handler = make_handler(tmp_path / "home", federation, policy='split = "own"')
    for source in ("auto", "recipe"):  # the server cannot set the manifest aside either
        request = request_for("describe", png_recipe(federation, data={"split_from": source}))
        reply = handler.answer(replace(request, run=source))
        assert reply.images == {"train": 6, "val": 0, "test": 3}  # type: ignore[union-attr]


def test_a_site_whose_images_grow_takes_part_again_when_enough_are_new(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "growing", {"north": 10})
    manifest = federation / "manifest.csv"

    def add(number: int) -> None:
        for kind in ("images", "labels"):
            shutil.copy(federation / "north" / kind / "case0.png", federation / "north" / kind / f"new{number}.png")

    manifest.write_text("site,image,split\n" + "".join(f"north,case{number},train\n" for number in range(10)))
    server = attacker(tmp_path, federation)
    assert isinstance(server.ask("train"), Update)
    for number in range(5):
        add(number)
        manifest.write_text(manifest.read_text() + f"north,new{number},train\n")
        server.handler = make_handler(tmp_path / "home", federation, policy="")
        reply = server.ask("train")
        if number < 4:
            assert_refused(reply, "takes part again when 5 cases or more are new")
    assert isinstance(reply, Update)


def test_scores_that_are_held_back_are_not_remembered(tmp_path: Path, thirty: Path) -> None:
    server = attacker(tmp_path, thirty)
    for numbers in ((22, 4, 4), (23, 4, 3)):
        held = server.ask("evaluate", split="test", data=cases_split(*numbers))
        assert isinstance(held, Evaluation)
        assert "held back" in held.note
    assert not (tmp_path / "home" / "case_sets.json").exists()


def test_where_values_of_cases_or_of_single_images_may_leave_nothing_is_compared(tmp_path: Path, thirty: Path) -> None:
    numbered = attacker(tmp_path / "numbered", thirty, 'per_case_metrics = "numbered"')
    for numbers in ((16, 7, 7), (15, 7, 8)):
        assert isinstance(numbered.ask("evaluate", split="test", data=cases_split(*numbers)), Evaluation)
    assert isinstance(numbered.ask("train", data=cases_split(16, 7, 7)), Update)
    assert_refused(numbered.ask("train", data=cases_split(15, 7, 8)), "training cases")
    single = attacker(tmp_path / "single", thirty, "minimum_images = 1")
    for numbers in ((16, 7, 7), (15, 7, 8)):
        assert isinstance(single.ask("train", data=cases_split(*numbers)), Update)
        assert isinstance(single.ask("evaluate", split="test", data=cases_split(*numbers)), Evaluation)
    assert not (tmp_path / "single" / "home" / "case_sets.json").exists()


def test_a_restarted_site_remembers_and_its_file_names_no_case(tmp_path: Path, thirty: Path) -> None:
    server = attacker(tmp_path, thirty)
    assert isinstance(server.ask("train", data=cases_split(18, 6, 6)), Update)
    file = tmp_path / "home" / "case_sets.json"
    assert "case1" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    server.handler = make_handler(tmp_path / "home", thirty, policy="")
    assert_refused(server.ask("train", data=cases_split(17, 7, 6)), "differ in 1 case")


@pytest.mark.parametrize("damage", ["text", "list", "row", "secret", "folder"])
def test_a_memory_that_cannot_be_read_lets_nothing_leave(damage: str, tmp_path: Path, thirty: Path) -> None:
    log: list[str] = []
    handler = make_handler(tmp_path / "home", thirty, policy="", log=log)
    server = Attacker(handler, thirty)
    assert isinstance(server.ask("train"), Update)
    home = tmp_path / "home"
    file = home / "case_sets.json"
    table = json.loads(file.read_text())
    if damage == "secret":
        (home / "mark.secret").write_bytes(b"another" * 5)
    elif damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text({"text": "{", "list": "[]", "row": json.dumps({**table, "sets": {"drawn": ["ab"]}})}[damage])
    for act, split in (("train", ""), ("evaluate", "test")):
        assert "something is wrong with the site's files, so nothing leaves" in reason_of(server.ask(act, split=split))
    assert any("case_sets.json" in line and "has forgotten what it answered for" in line for line in log)


def test_a_full_memory_lets_nothing_new_leave(tmp_path: Path, thirty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = attacker(tmp_path, thirty)
    assert isinstance(server.ask("train"), Update)
    monkeypatch.setattr(case_sets, "_LARGEST_FILE", 100)
    assert "no room for remembering more sets of cases" in reason_of(server.ask("evaluate", split="test"))
    assert isinstance(server.ask("train"), Update)


def test_one_more_image_or_slice_of_a_case_is_a_difference(tmp_path: Path) -> None:
    sets = CaseSets(tmp_path / "case_sets.json", b"secret")
    volumes = [Sample("north", f"v{case}", f"p{case}", index, None, None) for case in range(6) for index in range(4)]
    sets.remember(sets.of_scores({"": volumes}))
    sets.check(sets.of_scores({"": volumes[::-1]}), 5)
    another = Sample("north", "another image", "p0", None, None, None)
    for other in (volumes[:-1], [*volumes, another], volumes[:-9]):
        with pytest.raises(RefusedError, match="scored cases differ in"):
            sets.check(sets.of_scores({"": other}), 5)
    sets.check(sets.of_scores({"": [sample for sample in volumes if sample.slice_index != 0]}), 5)
    with pytest.raises(PolyclinicError, match="another secret"):
        CaseSets(sets.file, b"other").check({}, 5)


def test_a_mean_in_which_one_image_counts_is_held_back(tmp_path: Path) -> None:
    """With empty_masks = "ignore" images without a mask do not count: here all tested ones but five, then but one."""
    federation = write_tiny_federation(tmp_path / "empty", {"north": 30})
    recipe = png_recipe(federation, data=cases_split(16, 7, 7), policies={"empty_masks": "ignore"})
    _, _, split = site_in_process(recipe, "north", "all", tmp_path / "plain")
    names = [name for (_, name), part in split.of.items() if part == "test"]
    for full in (5, 1):
        for name in names[full:]:
            label = federation / "north" / "labels" / f"{name}.png"
            Image.fromarray(np.zeros((16, 16), np.uint8)).save(label)
        for detailed in (False, True):
            asked = replace(request_for("evaluate", recipe, split="test"), detailed=detailed)
            reply = make_handler(tmp_path / f"home{full}", federation, policy="").answer(asked)
            assert isinstance(reply, Evaluation)
            assert (reply.images, bool(reply.note)) == ((0, True) if full == 1 else (7, False))


def test_the_cases_of_each_class_are_compared_where_a_class_has_a_mean_of_its_own(tmp_path: Path) -> None:
    """Two sets that differ in many cases, and in one of those that have the rare class."""
    sets = CaseSets(tmp_path / "case_sets.json", b"secret")
    first, second = (
        [Sample("north", f"image{n}", f"case{n}", None, None, None) for n in range(start, start + 10)]
        for start in (0, 5)
    )
    sets.remember(sets.of_scores({"": first, "rare": first[5:8]}))
    with pytest.raises(RefusedError, match="3 cases scored rare differ in 2 cases"):
        sets.check(sets.of_scores({"": second, "rare": first[6:8] + second[9:]}), 5)
    sets.check(sets.of_scores({"": second, "rare": first[5:8]}), 5)
    sets.check(sets.of_scores({"": second, "rare": []}), 5)


PICTURES = 'shared = ["*", "fedmix/*"]'


def test_means_of_pictures_cannot_be_subtracted(tmp_path: Path, thirty: Path) -> None:
    """12 times the mean of twelve images less 11 times that of eleven is one patient's image."""
    server = attacker(tmp_path, thirty, PICTURES, data={"split": [1.0, 0.0, 0.0]})
    assert isinstance(server.ask("train", method="fedmix(images=12)"), Update)
    for method in ("fedmix(images=11)", "fedmix(images=5,averages=1)", "fedmix(images=30)"):
        reason = reason_of(server.ask("train", method=method))
        assert reason.startswith("refused: a mean of pictures of ")
        assert "case0" not in reason
    # The same groups tell nothing new, whatever the seed and however many of them are asked for.
    assert isinstance(server.ask("train", method="fedmix(images=12,averages=1)", seed=3), Update)
    assert isinstance(server.ask("train", method="fedavg"), Update)


def test_means_of_pictures_are_compared_by_the_cases_behind_each(tmp_path: Path) -> None:
    sets = CaseSets(tmp_path / "case_sets.json", b"secret")

    def group(*parts: tuple[int, int]) -> frozenset[str]:
        return sets._marks(Sample("north", f"image{case}", f"case{case}", slice_, None, None) for case, slice_ in parts)

    first, second = group((1, 0), (2, 0), (3, 0)), group((1, 1), (2, 1), (4, 0))
    sets.remember({}, [first, second])  # one grouping; its groups share cases, and no slice
    again = CaseSets(tmp_path / "case_sets.json", b"secret")
    again.check_pictures([second, first])
    again.check_pictures([group((5, 0), (6, 0), (7, 0))])
    for overlapping in (group((1, 0), (2, 0)), group((1, 2), (8, 0), (9, 0)), group((1, 1), (2, 0), (3, 0))):
        with pytest.raises(RefusedError, match="pictures"):
            again.check_pictures([overlapping])
    again.check({"training": first}, 5)  # another kind of use
