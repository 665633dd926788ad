"""The work that a server may ask for is bounded before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_support import OPEN, make_handler, png_recipe, reason_of, request_for
from polyclinic.deploy.site.work_limits import refusal_of_images, refusal_of_memory, refusal_of_sizes
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.site import Site
from polyclinic.federation.site_policy import Policy


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ({"local_epochs": 10**9}, "1000000000"),
        ({"local_epochs": 10, "steps_per_epoch": 10**8}, "1000000000"),
        ({"local_epochs": 10**2000, "steps_per_epoch": 10**2500}, "more than 10^15"),
    ],
)
def test_endless_epochs_are_refused_at_once(
    training: dict[str, int], steps: str, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "train", lambda *_: pytest.fail("the site has begun to train"))
    handler = make_handler(tmp_path / "home", tiny_federation, policy=OPEN)
    recipe = png_recipe(tiny_federation, training=training)
    for act in ("describe", "train"):
        reason = reason_of(handler.answer(request_for(act, recipe, Broadcast(0, {}))))
        assert f"refused: a round asks for {steps} optimiser steps, the site's policy allows 100000" in reason


def test_steps_are_counted_with_the_site_s_own_images(tiny_federation: Path, tmp_path: Path) -> None:
    """Three labelled training images in batches of two are two steps an epoch."""
    recipe = png_recipe(tiny_federation, training={"local_epochs": 4, "batch_size": 2})
    exact = make_handler(tmp_path / "exact", tiny_federation, policy=OPEN + "max_steps_per_round = 8")
    assert isinstance(exact.answer(request_for("train", recipe)), Update)
    fewer = make_handler(tmp_path / "fewer", tiny_federation, policy=OPEN + "max_steps_per_round = 7")
    assert "asks for 8 optimiser steps" in reason_of(fewer.answer(request_for("train", recipe)))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"protocol": {"kind": "k-fold", "folds": 10**9}}, "protocol.folds = 1000000000 is more"),
        ({"training": {"rounds": 10**12}}, "training.rounds = 1000000000000 is more"),
        ({"training": {"batch_size": 10**400}}, "training.batch_size = more than 10^15 is more"),
        ({"evaluation": {"overlap": 0.999}}, "evaluation.overlap = 0.999 is more than any site does, at most 0.95"),
        ({"data": {"neighbours": 10**6}}, "data.neighbours = 1000000 is more"),
        ({"network": {"width": 10**6}}, "network.width = 1000000 is more"),
        ({"network": {"name": "vit", "layers": 10**6}}, "network.layers = 1000000 is more"),
        ({"engine": {"threads": 10**6}}, "engine.threads = 1000000 is more"),
    ],
)
def test_numbers_that_no_honest_recipe_has_are_refused(sections: dict[str, Any], words: str, tmp_path: Path) -> None:
    table = {"network": {"width": 2}, **sections}
    if sections.get("network", {}).get("name") == "vit":
        table["network"] = {"depth": 4, "width": 2, "norm": "instance", **sections["network"]}
    recipe = png_recipe(tmp_path / "nowhere", **table)
    assert words in str(refusal_of_sizes(Policy(), recipe))
    handler = make_handler(tmp_path / "home", tmp_path / "nowhere")
    assert words in reason_of(handler.answer(request_for("train", recipe, Broadcast(0, {}))))


def test_batches_and_images_beyond_the_memory_are_refused(tiny_federation: Path, tmp_path: Path) -> None:
    policy = Policy(max_memory_gb=8)
    fits = png_recipe(tiny_federation, data={"size": [512, 512]}, network={"width": 16}, training={"batch_size": 6})
    assert refusal_of_memory(policy, fits, 10**7) is None
    for sections in (
        {"data": {"size": [10**5, 10**5]}},
        {"data": {"size": [16, 16], "patch": [10**5, 10**5]}},
        {"data": {"size": [10**3000, 10**3000]}},
        {"data": {"size": [512, 512]}, "training": {"batch_size": 10_000}},
        {"data": {"size": [512, 512]}, "evaluation": {"batch_size": 100_000}},
    ):
        recipe = png_recipe(tiny_federation, **sections)  # type: ignore[arg-type]
        assert "the site allows 8 (max_memory_gb)" in str(refusal_of_memory(policy, recipe, 0)), sections
    assert refusal_of_memory(policy, fits, 10**10) is not None
    assert refusal_of_images(policy, 10**9) is None
    assert "prepared images need 9 GB" in str(refusal_of_images(policy, 9 * 10**9))
    # 5 images of 2000 x 2000 pixels, 5 bytes each, whose patches would fit; from the cache they would be mapped.
    large = png_recipe(tiny_federation, data={"size": [2000, 2000], "patch": [16, 16]})
    handler = make_handler(tmp_path / "home", tiny_federation, policy=OPEN + "max_memory_gb = 0.099", cache="off")
    weights = request_for("train", png_recipe(tiny_federation)).broadcast
    assert "prepared images need 0.1 GB of memory" in reason_of(handler.answer(request_for("train", large, weights)))
