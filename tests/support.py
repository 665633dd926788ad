"""A tiny federation in memory and on disk, and a run over it without the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from polyclinic.data.federation import Task
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.sitedata import SiteData, pool
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore, StateMemory
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import make_recipe

CLASSES = ("background", "disc", "core")
# One site is smaller than a batch, one has a single image.
SIZES = {"north": 5, "south": 3, "west": 1}


def tiny_task(dims: int = 2) -> Task:
    return Task(CLASSES, 2, dims)


def tiny_site(name: str, count: int, dims: int = 2, size: int = 8, labelled: bool = True) -> SiteData:
    """Noise with a bright disc. The first mask is empty; the class ``core`` is absent at the site ``south``."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    total = count + 2
    images = torch.rand(total, 2, *[size] * dims, generator=generator)
    grid = torch.stack(torch.meshgrid(*[torch.arange(size)] * dims, indexing="ij")).float()
    centre = torch.randint(2, size - 2, (total, dims), generator=generator).float()
    distance = (grid[None] - centre.reshape(total, dims, *[1] * dims)).square().sum(1).sqrt()
    labels = (distance < 2.5).to(torch.uint8)
    if name != "south":
        labels += (distance < 1.2).to(torch.uint8)
    images += labels[:, None] * 0.8
    labels[0] = 0
    samples = [Sample(name, f"{name}-{i}", f"{name}-{i}", None, None, None) for i in range(total)]
    images_set = ImageSet(images, labels, torch.full((total,), labelled), samples)
    splits = {"train": torch.arange(count), "val": torch.tensor([count]), "test": torch.tensor([count + 1])}
    return SiteData(name, images_set, splits)


def tiny_recipe(method: str = "fedavg", **sections: dict[str, Any]) -> Recipe:
    table: dict[str, Any] = {
        "federation": "memory",
        "method": method,
        "network": {"width": 2, "depth": 2, "norm": "batch"},
        "training": {"rounds": 3, "local_epochs": 2, "batch_size": 2, "lr": 0.01},
        "engine": {"device": "cpu"},
    }
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section} if isinstance(section, dict) else section
    return make_recipe(table)


class Interrupted(Exception):  # noqa: N818
    """Stands for a kill: nothing after it runs."""


class Killer(Observer):
    """Stops the run when ``when(event name, round, site)`` says so."""

    def __init__(self, when: Callable[[str, int, str], bool]) -> None:
        self.when = when

    def on_site(self, round_number: int, site: str) -> None:
        if self.when("site", round_number, site):
            raise Interrupted

    def on_round(self, event: dict[str, Any]) -> None:
        if self.when("round", event["round"], ""):
            raise Interrupted


class Keeper(Observer):
    """Keeps the record in memory."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, str, str]] = []

    def on_round(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        self.refusals.append((round_number, site, reason))


def tiny_server(
    folder: Path,
    recipe: Recipe,
    dims: int = 2,
    sizes: dict[str, int] | None = None,
    observer: Observer | None = None,
    workspace: Workspace | None = None,
    engine: Callable[[Workspace, dict[str, Site]], Engine] = InProcess,
) -> Server:
    """A server over the tiny federation, ready to ``fit``; the same folder again means resuming."""
    workspace = workspace or build_workspace(recipe, tiny_task(dims))
    data = [tiny_site(name, count, dims) for name, count in (sizes or SIZES).items()]
    if workspace.method.pooled:
        data = [pool(data, "pooled")]
    memory = StateMemory()
    sites = {one.site: Site(one, SiteStore(folder / "sites" / one.site, memory)) for one in data}
    return Server(workspace, engine(workspace, sites), list(sites), folder / "server", observer or Observer())


def final_tensors(server: Server) -> dict[str, torch.Tensor]:
    """Everything that a run ends with: global weights, and every site's kept weights and memory."""
    found = {f"global/{n}": t for n, t in server.state.weights.items()}
    for owner, tensors in server.state.components.items():
        found |= {f"server/{owner}/{n}": t for n, t in tensors.items()}
    for name, site in server.engine.sites.items():  # type: ignore[attr-defined]
        state = site.store.load(before=10**6)
        found |= {f"{name}/personal/{n}": t for n, t in state.personal.items()}
        found |= {f"{name}/optimizer/{n}": t for n, t in state.optimizer.items()}
        for owner, tensors in state.components.items():
            found |= {f"{name}/{owner}/{n}": t for n, t in tensors.items()}
    return found


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, f"{len(different)} of {len(first)} tensors differ, first {different[0]}"


def write_tiny_federation(folder: Path, sizes: dict[str, int] | None = None, size: int = 16, seed: int = 0) -> Path:
    """A grey 2D federation of PNG files: bright discs on noise."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "federation.toml").write_text('classes = ["background", "disc"]\nchannels = 1\nspatial_dims = 2\n')
    rows, columns = np.mgrid[:size, :size]
    for number, (site, count) in enumerate((sizes or {"north": 5, "south": 4}).items()):
        for part in ("images", "labels"):
            (folder / site / part).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            centre = rng.integers(4, size - 4, 2)
            mask = ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2) < 9
            image = rng.normal(60 + 20 * number, 10, (size, size)) + mask * 90
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / site / "images" / f"case{index}.png")
            Image.fromarray(mask.astype(np.uint8)).save(folder / site / "labels" / f"case{index}.png")
    return folder


def write_tiny_recipe(path: Path, federation: Path, **training: object) -> Path:
    """A recipe file for ``write_tiny_federation``: three rounds that take a fraction of a second."""
    settings = {"rounds": 3, "local_epochs": 2, "batch_size": 2, "lr": 0.02, **training}
    lines = [f'federation = "{federation}"', "[network]", "width = 2", "depth = 2", 'norm = "batch"', "[training]"]
    path.write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in settings.items())]) + "\n")
    return path


def write_volumes(
    folder: Path,
    affine: np.ndarray,
    dims: int = 3,
    shape: tuple[int, ...] = (8, 12, 10),
    sites: str = "ab",
    count: int = 3,
) -> Path:
    """A federation of NIfTI volumes: a bright ball off the centre, dark elsewhere, labelled."""
    import nibabel

    folder.mkdir(parents=True)
    (folder / "federation.toml").write_text(f'classes = ["background", "ball"]\nspatial_dims = {dims}\n')
    grid = np.stack(np.mgrid[tuple(slice(size) for size in shape)])
    for number, site in enumerate(sites):
        for part in ("images", "labels"):
            (folder / site / part).mkdir(parents=True)
        for index in range(count):
            rng = np.random.default_rng(10 * number + index)
            centre = np.array([3, 4 + index % 3, 6]).reshape(3, 1, 1, 1)
            ball = ((grid - centre) ** 2).sum(0) < 9
            image = (rng.uniform(0, 30, shape) + 70 * ball).astype(np.float32)
            nibabel.save(nibabel.Nifti1Image(image, affine), folder / site / "images" / f"v{index}.nii.gz")
            nibabel.save(
                nibabel.Nifti1Image(ball.astype(np.uint8), affine), folder / site / "labels" / f"v{index}.nii.gz"
            )
    return folder


class Called(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def call(*arguments: object) -> Called:
    """The command line in this process, its error handler and exit code included."""
    from polyclinic.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["polyclinic", *map(str, arguments)]):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Called(code, out.getvalue(), err.getvalue())


class Keeping(InProcess):
    """Keeps every update."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.updates: list[Update] = []

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            assert isinstance(answer, Update), answer
            self.updates.append(answer)
            yield answer


def spoiling(site: str, spoil):  # type: ignore[no-untyped-def]
    """An engine in which one site's answers are changed on the way."""

    class Spoiling(InProcess):
        def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
            for answer in super().train(broadcast, sites):
                yield spoil(answer) if answer.site == site else answer

    return Spoiling


def fail(update: Update) -> Failure:
    """What to put in the place of an update of a site that failed."""
    return Failure(update.site, update.round, "OSError: the scanner is on fire")
