"""Every example of CONTRIBUTING.md is loaded as a plugin and used in a run."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyclinic.components import registry as component_registry
from polyclinic.data.formats import FORMATS
from polyclinic.engines import registry as engine_registry
from polyclinic.evaluation import metric_registry
from polyclinic.methods import registry as method_registry
from polyclinic.networks import registry as network_registry
from polyclinic.recipe.network import NETWORK_SETTINGS
from support import call, write_tiny_federation

PAGE = (Path(__file__).resolve().parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(heading: str) -> str:
    """The Python block below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return block


@pytest.fixture(autouse=True)
def _no_example_stays_registered() -> Iterator[None]:
    method_registry.methods()
    metric_registry.known_metrics()
    engine_registry.find_engine("inprocess")
    network_registry._import_all()
    registries = [
        component_registry._COMPONENTS, method_registry._METHODS, metric_registry._METRICS, FORMATS,
        network_registry.NETWORKS, NETWORK_SETTINGS, engine_registry.ENGINES,
    ]  # fmt: skip
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


def write_recipe(folder: Path, federation: Path, *headings: str, **tables: str) -> Path:
    """A recipe of one round whose plugins are the examples below these headings."""
    names = []
    for heading in headings:
        names.append(f"{heading.lower().replace(' ', '_')}.py")
        (folder / names[-1]).write_text(example(heading))
    tables = {
        "network": "width = 2\ndepth = 2",
        "training": "rounds = 1\nbatch_size = 2",
        "evaluation": 'metrics = ["dice"]',
        **tables,
    }
    top = f"federation = {json.dumps(str(federation))}\nplugins = {json.dumps(names)}\n"
    path = folder / "recipe.toml"
    path.write_text(top + "\n".join(f"[{name}]\n{keys}" for name, keys in tables.items()))
    return path


def finished_run(recipe: Path, out: Path, *options: str) -> dict:
    done = call("run", recipe, "--out", out, *options)
    assert done.code == 0, done.err
    return json.loads((out / "summary.json").read_text())


def weights_of(run: Path) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*.safetensors")}
    return {name: path.read_bytes() for name, path in files.items() if name.startswith("checkpoints/")}


def test_a_component_and_a_method(tmp_path: Path, tiny_federation: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_federation, "A component", "A method")
    for name, method in {"with": "fedentropy", "zero": "fedentropy(weight=0)", "plain": "fedavg"}.items():
        assert finished_run(recipe, tmp_path / name, "--method", method)["method"] == method
    runs = {name: weights_of(tmp_path / name) for name in ("with", "zero", "plain")}
    assert runs["plain"]
    assert runs["zero"] == runs["plain"]
    assert runs["with"].keys() == runs["plain"].keys()
    assert runs["with"] != runs["plain"]


def test_the_naive_equation_holds_for_the_component(tmp_path: Path) -> None:
    from types import SimpleNamespace

    source: dict = {}
    exec(example("How to write a test"), source)
    (tmp_path / "entropy.py").write_text(example("A component"))
    method_registry.load_plugins([str(tmp_path / "entropy.py")])
    component = component_registry.find_component("entropy")
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    built = component(component.Settings(weight=0.5), None)
    loss = built.loss(SimpleNamespace(output=SimpleNamespace(logits=logits)))["entropy"]
    assert float(loss) == pytest.approx(0.5 * source["naive_entropy"](logits), rel=1e-5)


def test_a_metric(tmp_path: Path, tiny_federation: Path) -> None:
    measured = 'metrics = ["precision", "sensitivity", "volume_error"]'
    recipe = write_recipe(tmp_path, tiny_federation, "A metric", evaluation=measured, training="rounds = 4\nlr = 0.05")
    done = call("run", recipe, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"{100 * summary['average']['volume_error']:.2f}" in done.out
    cases: dict[tuple[str, str], dict[str, float]] = {}
    with (tmp_path / "run" / "cases.csv").open() as file:
        for row in csv.DictReader(file):
            cases.setdefault((row["site"], row["case"]), {})[row["metric"]] = float(row["value"])
    assert cases
    for values in cases.values():
        # Shares of the same hits, so that their quotient is that of the sizes.
        p, s = values["precision"], values["sensitivity"]
        assert values["volume_error"] == pytest.approx(abs(s - p) / (s + p) if s + p else 1.0)


def test_a_metric_that_nobody_registered(tmp_path: Path, tiny_federation: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_federation, "A metric", evaluation='metrics = ["volume_eror"]')
    refused = call("run", recipe, "--out", tmp_path / "run")
    assert refused.code == 2
    assert "evaluation.metrics: 'volume_eror' is not a metric, did you mean 'volume_error'?" in refused.err
    assert not (tmp_path / "run").exists()


def test_a_file_format(tmp_path: Path) -> None:
    pictures = write_tiny_federation(tmp_path / "pictures")
    arrays = write_tiny_federation(tmp_path / "arrays")
    for path in arrays.rglob("*.png"):
        np.save(path.with_suffix(".npy"), np.asarray(Image.open(path)))
        path.unlink()
    first = finished_run(write_recipe(tmp_path, arrays, "A file format"), tmp_path / "first")
    second = finished_run(write_recipe(tmp_path, pictures), tmp_path / "second")
    assert first["sites"] == second["sites"]
    assert weights_of(tmp_path / "first") == weights_of(tmp_path / "second") != {}
    predicted = call("predict", tmp_path / "first", arrays / "north" / "images", "--out", tmp_path / "masks")
    assert predicted.code == 0, predicted.err
    mask = np.load(tmp_path / "masks" / "case0.npy", allow_pickle=False)
    assert (mask.shape, mask.dtype) == ((16, 16), np.uint8)


def test_a_network(tmp_path: Path, tiny_federation: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_federation, "A network", network='name = "shallow"')
    summary = finished_run(recipe, tmp_path / "run")
    written = (tmp_path / "run" / "recipe.toml").read_text()
    assert '[network]\nname = "shallow"\nwidth = 8\n' in written  # the default is written out
    (tmp_path / "run" / "summary.json").unlink()
    assert finished_run(recipe, tmp_path / "run", "--resume")["sites"] == summary["sites"]
    # Its taps, stages and outlets are what AFA and SSA need of a network.
    assert finished_run(recipe, tmp_path / "pathfl", "--method", "pathfl")["method"] == "pathfl"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("network.widht=4", "unknown key 'network.widht', did you mean 'width'?"),
        ("network.width=0", "network.width = 0 is not possible: it must be greater than or equal to 1."),
        ("network.patch=8", "network: patch needs name = 'vit', not 'shallow'"),
        ("network.name=shalow", "network.name = 'shalow' is not a network, did you mean 'shallow'?"),
    ],
)
def test_a_network_of_a_plugin_checks_its_keys(
    tmp_path: Path, tiny_federation: Path, override: str, sentence: str
) -> None:
    recipe = write_recipe(tmp_path, tiny_federation, "A network", network='name = "shallow"')
    refused = call("run", recipe, "--out", tmp_path / "run", "--set", override)
    assert (refused.code, sentence in refused.err) == (2, True), refused.err
    assert not (tmp_path / "run").exists()


def test_an_engine(tmp_path: Path, tiny_federation: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_federation, "An engine", training="rounds = 2\nbatch_size = 2")
    forwards = finished_run(recipe, tmp_path / "forwards")
    backwards = finished_run(recipe, tmp_path / "backwards", "--set", "engine.name=backwards")
    assert forwards["sites"] == backwards["sites"]
    assert weights_of(tmp_path / "forwards") == weights_of(tmp_path / "backwards") != {}
