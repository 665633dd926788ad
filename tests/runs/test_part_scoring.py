"""Which model is tested at which site, and in which unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.observer import Observer
from polyclinic.runs.part_scoring import check_test_data, require_spacing
from run_files import SIZES, events_of, rows_of, summary_of
from support import tiny_recipe, tiny_site, write_tiny_federation, write_tiny_recipe

Finished = Callable[..., Path]


def test_personal_models_without_a_rule_for_strangers_are_all_tested_at_the_unseen_site(tmp_path: Path) -> None:
    """Three sites and ``local``: two models for each unseen site, averaged."""
    federation = write_tiny_federation(tmp_path / "fed", {"a": 3, "b": 3, "c": 3})
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    overrides = ["protocol.kind=leave-one-site-out"]
    run = polyclinic.run(recipe, out=tmp_path / "run", method="local", overrides=overrides).folder
    models = {(row["site"], row["model"]) for row in rows_of(run)}
    assert models == {(site, model) for site in "abc" for model in "abc" if site != model}
    values = [float(r["value"]) for r in rows_of(run) if (r["site"], r["metric"]) == ("a", "dice")]
    assert len(values) == 2 * 3
    assert summary_of(run)["sites"]["a"]["dice"] == pytest.approx(mean(values))


def test_the_transfer_matrix_holds_every_model_at_every_site(finished: Finished) -> None:
    local = summary_of(finished("local", "protocol.transfer=true", "network.depth=1"))
    matrix = local["transfer"]["all"]
    assert {model: set(row) for model, row in matrix.items()} == {site: set(SIZES) for site in SIZES}
    for site in SIZES:
        assert matrix[site][site] == local["sites"][site]["dice"]
    assert matrix["north"] != matrix["south"]
    shared = summary_of(finished("fedavg", "protocol.transfer=true"))
    assert shared["transfer"]["all"]["north"] == shared["transfer"]["all"]["south"]
    assert "transfer" not in summary_of(finished())


@pytest.mark.parametrize("method", ["fedavg", "local", "central"])
def test_training_images_are_scored_where_that_is_asked_for(method: str, finished: Finished) -> None:
    """A model that is trained longer fits them better; the table and the weights are as without."""
    asked, plain = finished(method, "evaluation.training_images=true"), finished(method)
    scores = summary_of(asked)["training_dice"]
    assert set(scores["sites"]) == set(SIZES)
    assert scores["average"] == pytest.approx(mean(scores["sites"].values()))
    assert 0 < scores["average"] < 1
    assert "training_dice" not in summary_of(plain)
    assert summary_of(asked)["sites"] == summary_of(plain)["sites"]
    longer = finished(method, "evaluation.training_images=true", "training.rounds=12", "training.select=last")
    assert summary_of(longer)["training_dice"]["average"] > scores["average"]


def test_the_tested_model_is_the_best_on_validation_or_the_last(finished: Finished) -> None:
    """A learning rate this high makes the last round worse than the one before."""
    best, last = (
        summary_of(finished("fedavg", "training.lr=1.0", f"training.select={which}")) for which in ("best", "last")
    )
    events = events_of(finished("fedavg", "training.lr=1.0", "training.select=best"))
    scores = [event["validation"]["dice"] for event in events]
    assert scores.index(max(scores)) < 2
    assert best["tested_rounds"] == {"all": scores.index(max(scores)) + 1}
    assert last["tested_rounds"] == {"all": 3}


def test_distances_say_their_unit(finished: Finished, tmp_path: Path) -> None:
    assert summary_of(finished())["distances"] == "pixels"
    federation = write_tiny_federation(tmp_path / "fed")
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    with pytest.raises(PolyclinicError, match=r"evaluation\.units = 'mm', but the files of site 'north'"):
        polyclinic.run(recipe, out=tmp_path / "none", overrides=["evaluation.units=mm"])
    pixels = polyclinic.run(recipe, out=tmp_path / "pixels").summary
    with (federation / "federation.toml").open("a") as file:
        file.write("spacing = [0.5, 0.5]\n")
    metres = polyclinic.run(recipe, out=tmp_path / "mm", overrides=["evaluation.units=mm"]).summary
    assert metres["distances"] == "mm"
    assert metres["average"]["hd95"] == pytest.approx(0.5 * pixels["average"]["hd95"])


def test_millimetres_need_the_spacing_of_every_image() -> None:
    data, recipe = tiny_site("north", 2), tiny_recipe(evaluation={"units": "mm"})
    require_spacing(data, tiny_recipe())
    samples = data.images.samples
    samples[:] = [replace(sample, spacing=(1.0, 1.0)) for sample in samples]
    require_spacing(data, recipe)
    samples[-1] = replace(samples[-1], spacing=None)
    with pytest.raises(PolyclinicError, match=r"evaluation\.units = 'mm': images of site 'north' do not know"):
        require_spacing(data, recipe)


def test_a_site_without_a_labelled_test_image_is_named_before_the_training() -> None:
    class Messages(Observer):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def on_message(self, text: str) -> None:
            self.texts.append(text)

    messages = Messages()
    check_test_data(tiny_site("north", 2), tiny_recipe(), messages)
    assert messages.texts == []
    check_test_data(tiny_site("south", 2, labelled=False), tiny_recipe(), messages)
    assert messages.texts == ["warning: south has no labelled test image, so it is not in the table"]
