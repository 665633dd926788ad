"""fl_lower, fl_upper, local and local+fixmatch: what they read, how they weigh, and steps that can be compared."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyclinic
from mixed_sites import mixed_server, mixed_site
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.label_budget import choose_labels
from polyclinic.data.open_federation import open_federation
from polyclinic.data.splits import assign_splits
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import methods
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.plan import require_training_data
from support import Keeping, assert_same, final_tensors, tiny_recipe, tiny_task, write_tiny_federation

BUDGET = 2
TRAIN = {"north": 5, "south": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites with 5 and 4 training images, and 2 each for validation and test."""
    return write_tiny_federation(tmp_path_factory.mktemp("bounds") / "tiny", {s: n + 4 for s, n in TRAIN.items()})


def recipe_of(folder: Path, method: str, labelled: int | None = BUDGET, **sections: Any) -> Recipe:
    data = {"size": [16, 16], "split": [0.5, 0.25, 0.25], **({"labelled": labelled} if labelled else {})}
    return make_recipe(
        {
            "federation": str(folder), "method": method, "data": data, "network": {"width": 2, "depth": 1},
            "training": {"rounds": 2, "batch_size": 2, "select": "last"}, "evaluation": {"metrics": ["dice"]},
            "engine": {"device": "cpu"}, **sections,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``done(method, labelled)`` is the folder of such a run, made once."""
    runs: dict[tuple[str, int | None], Path] = {}

    def run(method: str, labelled: int | None = BUDGET) -> Path:
        if (method, labelled) not in runs:
            out = tmp_path_factory.mktemp("run") / "run"
            runs[method, labelled] = polyclinic.run(recipe_of(folder, method, labelled), out=out).folder
        return runs[method, labelled]

    return run


def samples(run: Path) -> dict[str, int]:
    first: dict[str, dict[str, int]] = json.loads((run / "events.jsonl").read_text().splitlines()[0])
    return first["samples"]


@pytest.mark.parametrize(
    ("method", "counted"),
    [
        ("fl_lower", {"north": BUDGET, "south": BUDGET}),
        ("fl_upper", TRAIN),
        ("fixmatch", TRAIN),
        ("local", {"north": BUDGET, "south": BUDGET}),
    ],
)
def test_sites_weigh_by_the_images_that_the_method_learns_from(
    method: str, counted: dict[str, int], done: Callable[..., Path]
) -> None:
    """Labelled ones for fl_lower, all with their true labels for fl_upper, all for methods with few labels."""
    assert samples(done(method)) == counted
    assert (done(method) / "labelled.csv").exists() == (method != "fl_upper")


def test_fl_lower_is_fedavg_with_the_budget_and_fl_upper_fedavg_without(done: Callable[..., Path]) -> None:
    results = [(run / "cases.csv").read_text() for run in (done("fl_lower"), done("fl_upper"))]
    assert results[0] == (done("fedavg") / "cases.csv").read_text()
    assert results[1] == (done("fedavg", None) / "cases.csv").read_text()
    assert results[0] != results[1]


def test_only_fl_upper_reads_labels_outside_of_the_budget(tmp_path: Path) -> None:
    """They are made unreadable: a run that touches one stops."""
    folder = write_tiny_federation(tmp_path / "f", {s: n + 4 for s, n in TRAIN.items()})
    recipe = recipe_of(folder, "fl_lower")
    federation = open_federation(recipe.federation, recipe.data)
    split = assign_splits(federation, recipe.data, recipe.seed)
    chosen = choose_labels(federation, split, recipe.data, recipe.seed)
    assert chosen is not None
    hidden = [
        item
        for site, items in federation.sites.items()
        for item in items
        if split.of[site, item.name] == "train" and (site, item.name) not in chosen.of
    ]
    assert len(hidden) == sum(TRAIN.values()) - 2 * BUDGET
    for item in hidden:
        assert item.label is not None
        item.label.write_bytes(b"no label")
    for method in ("fl_lower", "local+fixmatch"):
        polyclinic.run(recipe_of(folder, method), out=tmp_path / method)
    with pytest.raises(PolyclinicError, match="cannot be read"):
        polyclinic.run(recipe_of(folder, "fl_upper"), out=tmp_path / "upper")


def test_fl_upper_alone_reads_all_labels_and_keeps_doing_so_with_other_components() -> None:
    assert [name for name, method in methods().items() if method.all_labels] == ["fl_upper"]
    assert parse_method("fl_upper+randconv").all_labels
    assert not parse_method("fl_lower+fixmatch").all_labels


def test_local_models_are_tested_at_the_site_that_was_left_out(tmp_path: Path) -> None:
    folder = write_tiny_federation(tmp_path / "f", {"north": 5, "south": 5, "west": 5})
    for method in ("local", "local+fixmatch"):
        recipe = recipe_of(folder, method, 1, protocol={"kind": "leave-one-site-out"})
        result = polyclinic.run(recipe, out=tmp_path / method)
        with (result.folder / "cases.csv").open() as file:
            tested = {(row["site"], row["model"]) for row in csv.DictReader(file)}
        sites = ("north", "south", "west")
        assert tested == {(unseen, source) for unseen in sites for source in sites if source != unseen}
        events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
        assert not any(event["bytes_up"][site] for event in events for site in event["sites"])


# ---- steps that can be compared --------------------------------------------------------------------------------------

COUNTS = {"north": (2, 9), "south": (3, 2), "west": (1, 0)}


def steps(tmp_path: Path, method: str, wanted: int | None) -> dict[str, int]:
    training = {"rounds": 1, "local_epochs": 2, **({"steps_per_epoch": wanted} if wanted else {})}
    server = mixed_server(
        tmp_path / f"{method}{wanted}", tiny_recipe(method, training=training), COUNTS, engine=Keeping
    )
    server.fit()
    return {update.site: update.steps for update in server.engine.updates}  # type: ignore[attr-defined]


def test_by_default_a_method_that_sees_more_images_makes_more_steps(tmp_path: Path) -> None:
    labelled = {"north": 2, "south": 4, "west": 2}
    assert steps(tmp_path, "fl_lower", None) == steps(tmp_path, "local", None) == labelled
    assert steps(tmp_path, "fixmatch", None) == {"north": 2 * (11 // 4 + 1), "south": 2 * (5 // 4 + 1), "west": 2}


@pytest.mark.parametrize("method", ["fl_lower", "fl_upper", "local", "local+fixmatch", "fixmatch", "rscfed"])
def test_steps_per_epoch_makes_all_methods_and_sites_equal(method: str, tmp_path: Path) -> None:
    assert steps(tmp_path, method, 3) == dict.fromkeys(COUNTS, 6)


def test_local_keeps_its_model_and_learns_from_unlabelled_images(tmp_path: Path) -> None:
    found = []
    for method in ("local", "local+fixmatch(threshold=0.4)", "local+fixmatch(weight=0)"):
        server = mixed_server(tmp_path / method, tiny_recipe(method, training={"rounds": 1}), COUNTS)
        start = {n: t.clone() for n, t in server.state.weights.items()}
        server.fit()
        assert_same(start, server.state.weights)
        found.append(final_tensors(server))
    alone, helped, zero = found
    assert_same(alone, zero)
    changed = {name.split("/")[0] for name in alone if not torch.equal(alone[name], helped[name])}
    assert changed == {"north", "south"}, "west has no unlabelled image"


@pytest.mark.parametrize("method", ["fl_lower", "local", "fixmatch(weight=0)"])
def test_a_site_without_labels_is_refused_by_methods_that_need_them(method: str) -> None:
    workspace = build_workspace(tiny_recipe(method), tiny_task())
    with pytest.raises(PolyclinicError, match="'west' has no labelled training image"):
        require_training_data(mixed_site("west", 0, 3), workspace)
    require_training_data(mixed_site("west", 1, 3), workspace)
    require_training_data(mixed_site("west", 0, 3), build_workspace(tiny_recipe("fixmatch"), tiny_task()))
