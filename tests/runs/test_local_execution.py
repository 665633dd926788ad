"""Sites of this process: which images they train on, in which part of a protocol."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors
from polyclinic.federation.training import LocalTraining
from run_files import METHODS, SIZES, events_of, rows_of, split_of, summary_of
from support import Interrupted, Keeper, Killer, assert_same, write_tiny_federation, write_tiny_recipe

Finished = Callable[..., Path]


class Witness(Keeper):
    """Notes which site's images are drawn for training, in which part of the protocol."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.part = ""
        self.drawn: dict[str, set[tuple[str, str]]] = {}
        real = LocalTraining._load

        def load(training: LocalTraining, rows: torch.Tensor, generator: torch.Generator) -> Any:
            samples = [training.site.data.images.samples[int(row)] for row in rows]
            self.drawn.setdefault(self.part, set()).update((sample.site, sample.name) for sample in samples)
            return real(training, rows, generator)

        monkeypatch.setattr(LocalTraining, "_load", load)

    def on_start(self, part: str, sites: Any, rounds: int, done: int) -> None:
        self.part = part


@pytest.mark.parametrize("method", METHODS)
def test_leave_one_site_out_tests_all_of_the_unseen_site_and_never_trains_on_it(
    method: str, tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness(monkeypatch)
    overrides = ["protocol.kind=leave-one-site-out", "training.rounds=1"]
    run = polyclinic.run(
        tiny_recipe_file, out=tmp_path / "run", method=method, overrides=overrides, observer=witness
    ).folder
    tested = Counter((row["site"], row["image"]) for row in rows_of(run) if row["metric"] == "dice")
    assert tested == {(site, f"case{number}"): 1 for site, count in SIZES.items() for number in range(count)}
    for unseen in SIZES:
        split = split_of(run, f"split-without-{unseen}.csv")
        assert {part for key, part in split.items() if key[0] == unseen} == {"test"}
        assert witness.drawn[f"without-{unseen}"] == {key for key, part in split.items() if part == "train"}
        digest = hashlib.sha256((run / f"split-without-{unseen}.csv").read_bytes()).hexdigest()
        assert summary_of(run)["split_sha256"][f"without-{unseen}"] == digest
    assert not (run / "split.csv").exists()
    assert list(summary_of(run)["sites"]) == ["north", "south"]
    assert [sum(event["samples"].values()) for event in events_of(run)] == [2, 3]


def test_training_draws_training_images_only(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness(monkeypatch)
    run = polyclinic.run(
        tiny_recipe_file, out=tmp_path / "run", overrides=["training.rounds=1"], observer=witness
    ).folder
    assert witness.drawn == {"all": {key for key, part in split_of(run).items() if part == "train"}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [{"only": 4}, {"big": 5, "small": 1}], ids=["one-site", "smaller-than-a-batch"])
def test_one_site_or_a_tiny_one_is_no_error(method: str, sizes: dict[str, int], tmp_path: Path) -> None:
    recipe = write_tiny_recipe(tmp_path / "r.toml", write_tiny_federation(tmp_path / "fed", sizes), rounds=1)
    messages: list[str] = []

    class Listener(Keeper):
        def on_message(self, text: str) -> None:
            messages.append(text)

    result = polyclinic.run(recipe, out=tmp_path / "run", method=method, observer=Listener())
    assert result.summary["refused"] == 0
    assert sum(events_of(result.folder)[0]["samples"].values()) == {"only": 2, "big": 4}[next(iter(sizes))]
    assert list(result.summary["sites"]) == [next(iter(sizes))]
    assert any("small has no labelled test image" in text for text in messages) == ("small" in sizes)


@pytest.mark.parametrize("method", ["fedavg", "central"])
def test_a_site_without_validation_images_is_no_failure(method: str, tiny_recipe_file: Path, tmp_path: Path) -> None:
    keeper = Keeper()
    overrides = ["data.split=[0.8, 0, 0.2]", "training.rounds=1"]
    polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method=method, overrides=overrides, observer=keeper)
    assert keeper.refusals == []


SITE = ("data.intensity=site", "training.rounds=2", "training.local_epochs=1")


def pixels(federation: Path, site: str, names: Iterable[str]) -> np.ndarray:
    """All values of some pictures, from 0 to 1."""
    return np.concatenate([np.asarray(Image.open(federation / site / "images" / f"{n}.png")) / 255 for n in names])


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("own-test", ["all"]),
        ("leave-one-site-out", ["without-north", "without-south"]),
        ("k-fold", ["fold-1", "fold-2"]),
        ("repeated-splits", ["repeat-1", "repeat-2"]),
    ],
)
@pytest.mark.parametrize("method", ["fedavg", "central"])
def test_a_site_keeps_the_mean_and_deviation_of_its_training_images_of_each_part(
    method: str, kind: str, parts: list[str], tiny_federation: Path, finished: Finished
) -> None:
    run = finished(method, *SITE, f"protocol.kind={kind}", "protocol.folds=2", "protocol.repeats=2")
    for part in parts:
        one_split = (run / "split.csv").exists()
        split = split_of(run, "split.csv" if one_split else f"split-{part}.csv")
        for site, count in SIZES.items():
            names = [image for (owner, image), of in split.items() if owner == site and of == "train"]
            unseen = part == f"without-{site}"
            values = pixels(tiny_federation, site, [f"case{n}" for n in range(count)] if unseen else names)
            kept = json.loads((run / "sites" / site / part / "intensity.json").read_text())
            assert kept["mean"] == pytest.approx([values.mean()])
            assert kept["deviation"] == pytest.approx([values.std()])
            assert kept["images"] == (count if unseen else len(names))


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_tensors(run / "checkpoints" / "all" / "server.safetensors")[0]


def test_site_intensities_survive_a_kill_other_engines_and_more_rounds(
    tiny_recipe_file: Path, finished: Finished, tmp_path: Path
) -> None:
    whole = finished("fedavg", *SITE)
    killer = Killer(lambda event, number, site: (event, number, site) == ("site", 1, "south"))
    out = tmp_path / "killed"
    with pytest.raises(Interrupted):
        polyclinic.run(tiny_recipe_file, out=out, method="fedavg", overrides=SITE, observer=killer)
    kept = out / "sites" / "north" / "all" / "intensity.json"
    before = kept.read_text()
    kept.write_text(before.replace('"images": 3', '"images": 4'))
    with pytest.raises(PolyclinicError, match="images have changed since this run started"):
        polyclinic.run(tiny_recipe_file, out=out, method="fedavg", overrides=SITE, resume=True)
    kept.write_text(before)
    polyclinic.run(tiny_recipe_file, out=out, method="fedavg", overrides=SITE, resume=True)
    assert_same(weights_of(out), weights_of(whole))
    workers = polyclinic.run(
        tiny_recipe_file, out=tmp_path / "workers", method="fedavg",
        overrides=(*SITE, "engine.name=workers", "engine.workers=2"),
    ).folder  # fmt: skip
    assert_same(weights_of(workers), weights_of(whole))
    longer = [key.replace("rounds=2", "rounds=3") for key in SITE]
    polyclinic.run(tiny_recipe_file, out=out, method="fedavg", overrides=longer, resume=True)
    at_once = polyclinic.run(tiny_recipe_file, out=tmp_path / "longer", method="fedavg", overrides=longer).folder
    assert_same(weights_of(out), weights_of(at_once))
