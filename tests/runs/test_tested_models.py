"""The weights of finished runs against those that the network really had while each site was tested."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import polyclinic
import polyclinic.federation.site as federation_site
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.sitedata import SiteData
from polyclinic.exchange.messages import Evaluation, Tensors
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.tested_data import open_tested_data
from polyclinic.runs.tested_models import TestedModels
from support import assert_same

Seen = list[tuple[str, Tensors]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Site and weights of every test, in the order of tests."""
    found: Seen = []
    original = federation_site.score_cases

    def watched(workspace: Workspace, data: SiteData, split: str, round_number: int) -> Evaluation:
        found.append((data.site, {n: t.clone() for n, t in workspace.network.state_dict().items()}))
        return original(workspace, data, split, round_number)

    monkeypatch.setattr(federation_site, "score_cases", watched)
    return found


@pytest.mark.parametrize("select", ["best", "last"])
@pytest.mark.parametrize(
    ("method", "protocol"),
    [
        ("fedavg", ("own-test",)),
        ("fedbn", ("own-test",)),
        ("local", ("own-test",)),
        ("central", ("own-test",)),
        ("fedbn", ("leave-one-site-out",)),
        ("local", ("leave-one-site-out",)),
        ("fedbn", ("k-fold", "protocol.folds=2")),
    ],
)
def test_the_network_is_what_was_tested(
    tiny_recipe_file: Path, tmp_path: Path, seen: Seen, method: str, protocol: tuple[str, ...], select: str
) -> None:
    # A learning rate that spoils the later rounds, so that the best model is not the last.
    kind, *more = protocol
    overrides = (f"protocol.kind={kind}", *more, f"training.select={select}", "training.lr=0.2")
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method=method, overrides=overrides).folder
    models = TestedModels.of(run)
    number = 0
    for part in open_tested_data(models).parts.values():
        pairs = dict.fromkeys((row["site"], row.get("model", "")) for row in models.rows(part.name))
        for site, source in pairs:
            expected_site, expected = seen[number]
            assert site == expected_site
            models.load(part, site, source)
            assert_same(models.workspace.network.state_dict(), expected)
            number += 1
    assert number == len(seen)
    assert number > 1


def test_the_initial_weights_are_those_of_the_seed(tiny_recipe_file: Path, tmp_path: Path) -> None:
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=("training.rounds=1",)).folder
    models, fresh = TestedModels.of(run), TestedModels.of(run)
    part = open_tested_data(models).parts["all"]
    first = {name: tensor.clone() for name, tensor in fresh.workspace.network.state_dict().items()}
    models.load(part, "north")
    assert any(not torch.equal(tensor, first[name]) for name, tensor in models.workspace.network.state_dict().items())
    models.load_initial()
    assert_same(models.workspace.network.state_dict(), first)


def test_kept_weights_of_a_site_in_a_process_of_its_own_are_found(tiny_recipe_file: Path, tmp_path: Path) -> None:
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method="fedbn").folder
    models = TestedModels.of(run)
    part = open_tested_data(models).parts["all"]
    models.load(part, "north")
    before = {name: tensor.clone() for name, tensor in models.workspace.network.state_dict().items()}
    moved = run / "sites" / "north" / "runs" / "first"
    moved.mkdir(parents=True)
    shutil.move(run / "sites" / "north" / "all", moved / "all")  # as the engine flower leaves it
    models.load(part, "north")
    assert_same(models.workspace.network.state_dict(), before)
    shutil.rmtree(run / "sites")
    for site in ("north", "../../elsewhere"):
        with pytest.raises(PolyclinicError, match="are at the site, not in this run"):
            models.load(part, site)


def test_a_device_that_is_not_here_is_replaced(tiny_recipe_file: Path, tmp_path: Path) -> None:
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=("training.rounds=1",)).folder
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('device = "auto"', 'device = "cuda:99"'))
    assert "cuda:99" in recipe.read_text()
    assert TestedModels.of(run).recipe.engine.device == "auto"
