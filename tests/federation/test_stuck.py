"""A run, or a site, that predicts background only is noticed from what sites say anyway, and in no other case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.data.federation import Task
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Evaluation, Failure
from polyclinic.federation.scoring import score_quickly
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.stuck import (
    finds_nothing,
    rounds_of_nothing,
    stuck_briefly,
    stuck_sites_warning,
    stuck_warning,
)
from polyclinic.federation.workspace import build_workspace
from polyclinic.recipe.training import TrainingSettings
from support import Interrupted, Keeper, Killer, tiny_recipe, tiny_server, tiny_site, tiny_task


@pytest.mark.parametrize(
    ("scores", "background", "nothing"),
    [
        ({"a": 0.0, "b": 0.009}, (), True),
        ({"a": 0.0, "b": 0.01}, (), False),
        ({"a": 0.6, "b": 0.0}, ("a",), True),  # most slices of a are empty
        ({"a": 0.6, "b": 0.3}, ("a",), False),
        ({}, (), False),
    ],
)
def test_every_site_must_have_found_nothing(scores: dict[str, float], background: Any, nothing: bool) -> None:
    assert finds_nothing(scores, background) is nothing


def test_the_warning_names_what_can_still_be_tried() -> None:
    plain = stuck_warning(tiny_recipe(network=BEFORE, training={"dice_classes": "all"}), 5)
    assert "last 5 validated rounds" in plain
    for key in ("training.lr is 0.01", "data.patch", "network.last_activation", "training.dice_classes"):
        assert key in plain
    network, training = {"last_activation": "leaky-relu"}, {"dice_classes": "foreground"}
    tried = stuck_warning(tiny_recipe(network=network, training=training, data={"patch": (8, 8)}), 5)
    assert "training.lr" in tried
    assert not any(key in tried for key in ("data.patch", "network.last_activation", "training.dice_classes"))
    assert "\n" not in plain + tried


@pytest.mark.parametrize(
    ("scores", "background", "counts"),
    [
        ({"a": 0.5, "b": 0.009, "c": 0.5}, ("c",), {"b": 3, "c": 1}),
        ({"a": 0.5, "b": 0.01, "c": 0.5}, (), {}),
        ({"a": 0.0, "b": 0.0, "c": 0.5}, ("c",), {}),  # nobody found anything: that is the run's
        ({"a": 0.5, "c": 0.0}, (), {"b": 2, "c": 1}),  # b is away, or withholds its score
        ({"a": 0.5, "b": 1.0, "c": 0.5}, ("b",), {}),  # the images of b have no structure
        ({"a": 0.5, "b": 0.5, "new": 0.0}, (), {}),  # it has not trained yet
    ],
)
def test_a_site_is_judged_by_its_own_score_beside_those_of_others(
    scores: dict[str, float], background: Any, counts: dict[str, int]
) -> None:
    before = {"b": 2}
    assert rounds_of_nothing(before, scores, background, ("a", "b", "c")) == counts
    assert before == {"b": 2}, "a checkpoint that is being written has it"


def test_the_warning_names_the_sites_and_says_why_by_what_is_shared() -> None:
    rounds = {"north": 5, "south": 10}
    own = stuck_sites_warning(tiny_recipe("fedbn"), rounds, own_weights=True)
    assert own.startswith("nothing was found at north (last 5 validated rounds) and south (last 10 validated rounds)")
    assert "with fedbn each site has weights of its own, and training is stuck there; try another, mostly lower," in own
    shared = stuck_sites_warning(tiny_recipe(), rounds, own_weights=False)
    assert "the model is the same at every site, so images or labels there are unlike the others'" in shared
    assert 'or data.intensity = "site"' not in shared
    assert 'data.intensity = "site" or a method that keeps weights at the sites, such as fedbn' in shared
    other = stuck_sites_warning(tiny_recipe(data={"intensity": "site"}), rounds, own_weights=False)
    assert "data.intensity" not in other
    assert "\n" not in own + shared
    assert "last 1 validated round)" in stuck_sites_warning(tiny_recipe(), {"a": 1}, own_weights=True)


def test_in_few_words_sites_are_named_while_they_are_few() -> None:
    assert stuck_briefly(0, {}) == stuck_briefly(None, ()) == ""
    assert stuck_briefly(5, ()) == "stuck at background"
    assert stuck_briefly(0, ("a", "b\x1b")) == "stuck at background at a, b"
    assert stuck_briefly(0, [str(number) for number in range(7)]) == "stuck at background at 7 sites"


@pytest.mark.parametrize("policy", ["one-if-both-empty", "ignore", "penalise"])
def test_a_site_tells_whether_it_saw_foreground_whatever_its_empty_masks_count_as(policy: str) -> None:
    workspace = build_workspace(tiny_recipe(policies={"empty_masks": policy}), tiny_task())
    data = tiny_site("north", 3)  # the first image of "train" has an empty mask
    with torch.no_grad():
        workspace.network.classifier.weight.zero_()
        workspace.network.classifier.bias.copy_(torch.tensor([1.0, 0, 0]))
    nothing = score_quickly(workspace, data, "train", 0)
    assert nothing.background_only
    assert nothing.dice == pytest.approx(1 / 3 if policy == "one-if-both-empty" else 0)
    with torch.no_grad():
        workspace.network.classifier.bias.copy_(torch.tensor([1.0, 0, 2.0]))
    assert not score_quickly(workspace, data, "train", 0).background_only


def saying(answers: dict[int, dict[str, tuple[float, bool]]]) -> type[InProcess]:
    """An engine whose sites say what the round's entry has: their Dice, and whether they saw background alone."""

    class Saying(InProcess):
        def evaluate(
            self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
        ) -> Iterator[Evaluation | Failure]:
            said = answers[broadcast.round]
            for answer in super().evaluate(broadcast, sites, split, detailed):
                assert isinstance(answer, Evaluation)
                if answer.site in said:
                    answer.dice, answer.background_only = said[answer.site]
                    answer.images = 0 if isnan(answer.dice) else answer.images
                yield answer

    return Saying


NOTHING = {"north": (0.5, True), "south": (0.0, True), "west": (0.0, False)}
SOMETHING = {**NOTHING, "west": (0.2, False)}


def warned(events: list[dict[str, Any]]) -> list[int]:
    return [event["round"] for event in events if any("found nothing" in text for text in event["warnings"])]


def test_rounds_in_a_row_are_counted_and_a_kill_forgets_none(tmp_path: Path) -> None:
    rounds = [SOMETHING, *[NOTHING] * 5, SOMETHING, *[NOTHING] * 2]
    engine = saying(dict(enumerate(rounds)))
    recipe = tiny_recipe(training={"rounds": len(rounds), "local_epochs": 1, "stuck_after": 2})
    keeper = Keeper()
    tiny_server(tmp_path / "whole", recipe, observer=keeper, engine=engine).fit()
    assert [event["stuck"] for event in keeper.events] == [0, 0, 2, 3, 4, 5, 0, 0, 2]
    assert warned(keeper.events) == [2, 4, 8]

    killer = Killer(lambda what, number, _: (what, number) == ("round", 3))
    killed = tiny_server(tmp_path / "killed", recipe, observer=killer, engine=engine)
    with pytest.raises(Interrupted):
        killed.fit()
    resumed = Keeper()
    tiny_server(tmp_path / "killed", recipe, observer=resumed, engine=engine).fit()
    first = resumed.events[0]["round"]
    assert 0 < first <= 3
    assert [event["stuck"] for event in resumed.events] == [event["stuck"] for event in keeper.events[first:]]


@pytest.mark.parametrize(("training", "stuck"), [({}, [0, 0, 0, 0, 5, 6]), ({"stuck_after": 0}, [0] * 6)])
def test_five_rounds_by_default_and_never_with_0(tmp_path: Path, training: dict[str, Any], stuck: list[int]) -> None:
    recipe, keeper = tiny_recipe(training={"rounds": 6, "local_epochs": 1, **training}), Keeper()
    tiny_server(tmp_path, recipe, observer=keeper, engine=saying(dict.fromkeys(range(6), NOTHING))).fit()
    assert [event["stuck"] for event in keeper.events] == stuck
    assert warned(keeper.events) == ([4] if any(stuck) else [])


ALONE = {"north": (0.5, False), "south": (0.0, True), "west": (0.4, False)}
SOUND = dict.fromkeys(ALONE, (0.5, False))
WITHHELD = {**ALONE, "south": (nan, True)}


def site_warnings(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["round"]: text for event in events for text in event["warnings"] if text.startswith("nothing was")}


@pytest.mark.parametrize(
    ("method", "buffers", "why"),
    [
        ("fedavg", "average", "the model is the same at every site"),
        ("fedavg", "keep", "the model is the same at every site"),  # statistics are no training
        ("local", "average", "with local each site has weights of its own"),
    ],
)
def test_a_site_that_finds_nothing_while_others_do_is_named(
    tmp_path: Path, method: str, buffers: str, why: str
) -> None:
    training, keeper = {"rounds": 2, "local_epochs": 1, "stuck_after": 2}, Keeper()
    recipe = tiny_recipe(method, training=training, policies={"buffers": buffers})
    tiny_server(tmp_path, recipe, observer=keeper, engine=saying(dict.fromkeys(range(2), ALONE))).fit()
    assert [event["stuck_sites"] for event in keeper.events] == [{}, {"south": 2}]
    ((number, said),) = site_warnings(keeper.events).items()
    assert number == 1
    assert said.startswith("nothing was found at south (last 2 validated rounds): background only")
    assert why in said


def test_rounds_of_a_site_are_counted_and_a_kill_forgets_none(tmp_path: Path) -> None:
    rounds = [SOUND, *[ALONE] * 5, SOUND, *[ALONE] * 2, NOTHING]
    engine = saying(dict(enumerate(rounds)))
    recipe = tiny_recipe("fedbn", training={"rounds": len(rounds), "local_epochs": 1, "stuck_after": 2})
    keeper = Keeper()
    tiny_server(tmp_path / "whole", recipe, observer=keeper, engine=engine).fit()
    found = [event["stuck_sites"].get("south", 0) for event in keeper.events]
    assert found == [0, 0, 2, 3, 4, 5, 0, 0, 2, 0]
    assert {site for event in keeper.events for site in event["stuck_sites"]} == {"south"}
    assert not any(event["stuck"] for event in keeper.events)
    said = site_warnings(keeper.events)
    assert list(said) == [2, 4, 8]
    assert "south (last 4 validated rounds)" in said[4]
    assert "with fedbn each site has weights of its own" in said[4]

    killer = Killer(lambda what, number, _: (what, number) == ("round", 3))
    killed = tiny_server(tmp_path / "killed", recipe, observer=killer, engine=engine)
    with pytest.raises(Interrupted):
        killed.fit()
    resumed = Keeper()
    tiny_server(tmp_path / "killed", recipe, observer=resumed, engine=engine).fit()
    first = resumed.events[0]["round"]
    assert 0 < first <= 3
    for again, before in zip(resumed.events, keeper.events[first:], strict=True):
        assert {**again, "seconds": None} == {**before, "seconds": None}


def test_a_site_that_withholds_its_score_is_not_judged(tmp_path: Path) -> None:
    rounds = [WITHHELD, WITHHELD, ALONE, ALONE, WITHHELD, WITHHELD, ALONE]
    recipe = tiny_recipe(training={"rounds": len(rounds), "local_epochs": 1, "stuck_after": 2})
    keeper = Keeper()
    tiny_server(tmp_path, recipe, observer=keeper, engine=saying(dict(enumerate(rounds)))).fit()
    assert [event["stuck_sites"].get("south", 0) for event in keeper.events] == [0, 0, 0, 2, 2, 2, 3]
    assert list(site_warnings(keeper.events)) == [3], "and nothing is said of rounds in which it gave none"


def test_a_site_with_weights_of_its_own_is_not_judged_before_it_has_trained(tmp_path: Path) -> None:
    training = {"rounds": 4, "local_epochs": 1, "stuck_after": 1, "participation": 0.3}
    keeper = Keeper()
    recipe = tiny_recipe("local", training=training)
    tiny_server(tmp_path, recipe, observer=keeper, engine=saying(dict.fromkeys(range(4), ALONE))).fit()
    drawn = [event["sites"] == ["south"] for event in keeper.events]
    assert drawn.index(True) > 0, "the draw of the seed"
    assert [bool(event["stuck_sites"]) for event in keeper.events] == [
        any(drawn[: number + 1]) for number in range(len(drawn))
    ]


def test_no_site_is_named_with_0(tmp_path: Path) -> None:
    recipe, keeper = tiny_recipe(training={"rounds": 3, "local_epochs": 1, "stuck_after": 0}), Keeper()
    tiny_server(tmp_path, recipe, observer=keeper, engine=saying(dict.fromkeys(range(3), ALONE))).fit()
    assert not any(event["stuck_sites"] or event["warnings"] for event in keeper.events)


# ---- a run that was stuck before -------------------------------------------------------------------------------------


def rare_structure(site: str, seed: int) -> SiteData:
    """Images of 48 x 48 pixels with four pixels of structure, as bright above the noise as ten of its deviations."""
    generator, count, size = torch.Generator().manual_seed(seed), 12, 48
    images = 0.1 * torch.randn(count, 1, size, size, generator=generator)
    labels = torch.zeros(count, size, size, dtype=torch.uint8)
    for label in labels:
        row, column = torch.randint(2, size - 5, (2,), generator=generator).tolist()
        label[row : row + 2, column : column + 2] = 1
    samples = [Sample(site, f"{site}-{i}", f"{site}-{i}", None, None, None) for i in range(count)]
    held_out = torch.arange(8, count)
    splits = {"train": torch.arange(8), "val": held_out, "test": held_out}
    return SiteData(
        site, ImageSet(images + labels[:, None], labels, torch.ones(count, dtype=torch.bool), samples), splits
    )


BEFORE = {"activation": "relu", "last_activation": "same"}


def train_on_rare_structure(
    folder: Path, seed: int, network: dict[str, Any], dice_classes: str, warmup: int = 0
) -> list[dict[str, Any]]:
    training = {"rounds": 8, "local_epochs": 1, "steps_per_epoch": 6, "batch_size": 4, "dice_classes": dice_classes}
    training |= {"optimizer": "sgd", "lr": 0.2, "momentum": 0.9, "warmup": warmup}
    network = {"width": 4, "depth": 3, "norm": "instance", **network}
    recipe = tiny_recipe(seed=seed, network=network, training=training)  # type: ignore[arg-type]
    workspace = build_workspace(recipe, Task(("background", "spot"), 1, 2))
    sites = {
        name: Site(rare_structure(name, number), SiteStore(folder / name)) for name, number in (("a", 1), ("b", 2))
    }
    keeper = Keeper()
    Server(workspace, InProcess(workspace, sites), list(sites), folder / "server", keeper).fit()
    return keeper.events


@pytest.mark.parametrize("seed", [0, 3])
def test_a_rare_structure_is_learned_with_leaky_relu_before_the_classifier(tmp_path: Path, seed: int) -> None:
    """Of 8 seeds ReLU before the classifier learns none, leaky ReLU of slope 0.1 there all of them, to a Dice of 1.

    Leaky ReLU of slope 0.01 and Dice over foreground learn 5.
    """
    before = train_on_rare_structure(tmp_path / "before", seed, BEFORE, "all")
    assert max(event["validation"]["dice"] for event in before) < 0.01
    assert before[-1]["stuck"] == 8
    assert warned(before) == [4]
    after = train_on_rare_structure(tmp_path / "after", seed, {**BEFORE, "last_activation": "leaky-relu"}, "all")
    assert after[-1]["validation"]["dice"] > 0.9
    assert after[-1]["stuck"] == 0


def test_the_defaults_of_a_recipe_learn_a_rare_structure(tmp_path: Path) -> None:
    after = train_on_rare_structure(tmp_path, 0, {}, TrainingSettings().dice_classes)
    assert after[-1]["validation"]["dice"] > 0.9


def test_leaky_relu_and_dice_over_foreground_help_too(tmp_path: Path) -> None:
    after = train_on_rare_structure(tmp_path, 0, {**BEFORE, "activation": "leaky-relu"}, "foreground")
    assert max(event["validation"]["dice"] for event in after) > 0.3
    assert after[-1]["stuck"] == 0
