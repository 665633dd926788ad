from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.base import Context
from polyclinic.components.images.cse import Cse
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.core.seeds import owner_number
from polyclinic.data.federation import Task
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.site_intensity import SiteMoments, moments_of
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import build_workspace
from polyclinic.recipe import DataSettings
from step_support import BARE
from support import assert_same, final_tensors, tiny_recipe, tiny_server, tiny_site, tiny_task

Tensors = dict[str, torch.Tensor]
EVERY_IMAGE = "fedavg+cse(probability=1)"


def make(channels: int = 2, dims: int = 2, intensity: str = "none", **own: Any) -> Cse:
    """On every image, as eqs. 8 and 9 are written; the default is a share of them."""
    own = {"probability": 1, **own}
    task = Task(("a", "b"), channels, dims)
    data = DataSettings.model_validate({"intensity": intensity})
    return Cse(Cse.Settings(**own), Context(task, value_range=data.value_range, keeps_style=data.keeps_style))


def begin(component: Cse, shared: Tensors, site: str = "north") -> Cse:
    data = tiny_site(site, 3)
    round_ = SiteRound(site, 1, None, {}, data, torch.device("cpu"), torch.Generator(), 2)  # type: ignore[arg-type]
    component.receive(round_, shared)
    return component


def a_step(images: torch.Tensor, last_epoch: bool = False, seed: int = 0) -> Step:
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.long)
    generator = torch.Generator().manual_seed(seed)
    return Step(BARE, None, images, labels, generator, 1, 0, 0, last_epoch, 0.0, 0.1)  # type: ignore[arg-type]


def pool_of(**styles: tuple[list[float], list[float]]) -> Tensors:
    return {
        "mean": torch.tensor([mean for mean, _ in styles.values()]),
        "deviation": torch.tensor([deviation for _, deviation in styles.values()]),
        "owners": torch.tensor([owner_number(site) for site in styles]),
    }


def hybrids(image: np.ndarray, pool: Tensors, channelwise: bool) -> dict[tuple[int, int, int], np.ndarray]:
    """Equations 6-9 written out: the result for every style, axis and half that keeps the original."""
    found = {}
    for j in range(len(pool["owners"])):
        styled = np.empty_like(image)
        for c in range(len(image)):
            part = image[c] if channelwise else image
            mu, k = part.mean(), c if channelwise else 0
            sigma = np.sqrt(((part - mu) ** 2).mean())
            styled[c] = (image[c] - mu) / sigma * float(pool["deviation"][j, k]) + float(pool["mean"][j, k])
        for axis, n in enumerate(image.shape[1:]):
            for half in (0, 1):
                mask = np.zeros(image.shape[1:])
                index = [slice(None)] * mask.ndim
                index[axis] = slice(0, n // 2) if half == 0 else slice(n // 2, n)
                mask[tuple(index)] = 1
                found[j, axis, half] = mask * image + (1 - mask) * styled
    return found


def choices(result: torch.Tensor, images: torch.Tensor, pool: Tensors, channelwise: bool) -> list[tuple[int, int, int]]:
    """Which style, axis and half each image got."""
    chosen = []
    for after, before in zip(result.double().numpy(), images.double().numpy(), strict=True):
        wanted = hybrids(before, pool, channelwise)
        fitting = [key for key, value in wanted.items() if np.allclose(value, after, atol=1e-4)]
        assert len(fitting) == 1, fitting
        chosen.append(fitting[0])
    return chosen


# ---- equations 6 to 9 ---------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(2, 7), min_size=2, max_size=3), st.integers(1, 3), st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_every_image_is_one_of_the_hybrids_of_the_equations(
    size: list[int], channels: int, channelwise: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(5, channels, *size, generator=generator) * 3 + 1
    k = channels if channelwise else 1
    pool = pool_of(a=([5.0] * k, [2.0] * k), b=([-1.0 - i for i in range(k)], [0.5] * k))
    component = begin(make(channels, len(size), statistics="channel" if channelwise else "scalar"), pool)
    step = a_step(images, seed=seed)
    before, labels = images.clone(), step.labels.clone()
    component.on_images(step)
    choices(step.images, before, pool, channelwise)
    assert torch.equal(images, before)
    assert torch.equal(step.labels, labels)


@pytest.mark.parametrize("size", [(4, 3), (2, 4, 3)])
def test_styles_and_halves_are_equally_likely_and_independent(size: tuple[int, ...]) -> None:
    images = torch.rand(1, 1, *size).expand(1200, 1, *size)
    pool = pool_of(a=([5.0], [2.0]), b=([-1.0], [0.5]))
    step = a_step(images)
    begin(make(1, len(size)), pool).on_images(step)
    combinations = 2 * 2 * len(size)
    counted = Counter(choices(step.images, images, pool, False))
    assert len(counted) == combinations
    expected = 1200 / combinations
    assert sum((n - expected) ** 2 / expected for n in counted.values()) < 3 * combinations


@pytest.mark.parametrize("statistics", ["scalar", "channel"])
@pytest.mark.parametrize("size", [(8, 6), (4, 6, 5)])
def test_the_styled_image_has_the_target_statistics_exactly(statistics: str, size: tuple[int, ...]) -> None:
    """Copies of one image that keep opposite halves give together the whole styled image."""
    image = torch.rand(1, 2, *size) * 4 + torch.tensor([3.0, -7.0]).view(1, 2, *[1] * len(size))
    k = 2 if statistics == "channel" else 1
    pool = pool_of(other=([0.25, 0.75][:k], [0.125, 0.0625][:k]))
    step = a_step(image.expand(64, 2, *size))
    begin(make(2, len(size), statistics=statistics), pool).on_images(step)
    untouched = (step.images == image).flatten(2).all(1)
    first = next(i for i in range(64) if untouched[i, 0])
    second = next(i for i in range(64) if (untouched[i] != untouched[first]).all())
    mask = untouched[first].view(1, *size)
    styled = torch.where(mask, step.images[second], step.images[first]).double()
    groups = styled.flatten(1) if statistics == "channel" else styled.flatten()[None]
    torch.testing.assert_close(groups.mean(1).float(), pool["mean"][0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(groups.std(1, correction=0).float(), pool["deviation"][0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("intensity", ["zero-one", "full-range", "percentile", "none", "z-score", "site"])
def test_only_styled_pixels_of_images_between_0_and_1_are_clamped(intensity: str, clamp: bool) -> None:
    clamped = clamp and intensity not in ("none", "z-score", "site")
    images = (
        torch.rand(16, 2, 6, 6) * 1.4 - 0.2
    )  # an augmentation may leave the range; the original half stays as it is
    step = a_step(images)
    begin(make(intensity=intensity, clamp=clamp), pool_of(other=([0.9], [0.5]))).on_images(step)
    same = step.images == images
    assert 0.4 < float(same.float().mean()) < 0.6
    assert (images[same] > 1).any()
    outside = (step.images[~same] > 1) | (step.images[~same] < 0)
    assert bool(outside.any()) == (not clamped)


def test_a_constant_image_gets_the_others_mean() -> None:
    images = torch.full((4, 2, 5, 5), 0.3)
    step = a_step(images, last_epoch=True)
    component = begin(make(statistics="channel"), pool_of(other=([0.5, 0.75], [0.2, 0.2])))
    component.on_images(step)
    for channel, mean in enumerate((0.5, 0.75)):
        values = step.images[:, channel].unique()
        torch.testing.assert_close(values, torch.tensor([0.3, mean]), atol=1e-3, rtol=0)
    shared = component.share(BARE)  # type: ignore[arg-type]
    torch.testing.assert_close(shared["mean"], torch.tensor([0.3, 0.3]))
    torch.testing.assert_close(shared["deviation"], torch.zeros(2), atol=2e-6, rtol=0)


def test_a_probability_spares_whole_images() -> None:
    images = torch.rand(400, 1, 4, 4)
    step = a_step(images)
    begin(make(1, probability=0.25), pool_of(other=([5.0], [2.0]))).on_images(step)
    untouched = (step.images == images).flatten(1).all(1)
    assert 0.68 < float(untouched.float().mean()) < 0.82


# ---- the pool -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [{}, pool_of(north=([0.5], [0.2]))], ids=["first round", "one site"])
def test_without_another_style_nothing_changes_and_nothing_is_drawn(pool: Tensors) -> None:
    step = a_step(images := torch.rand(3, 2, 4, 4), last_epoch=True)
    before = step.generator.get_state()
    begin(make(), pool).on_images(step)
    assert step.images is images
    assert torch.equal(step.generator.get_state(), before)


def test_the_own_style_is_left_out_unless_it_is_wanted() -> None:
    pool = pool_of(north=([5.0], [2.0]), south=([-1.0], [0.5]))
    images = torch.rand(40, 2, 4, 4)
    drawn = {}
    for exclude in (True, False):
        step = a_step(images)
        begin(make(exclude_self=exclude), pool).on_images(step)
        drawn[exclude] = {style for style, _, _ in choices(step.images, images, pool, False)}
    assert drawn == {True: {1}, False: {0, 1}}


def test_an_absent_site_stays_in_the_pool_with_its_last_style() -> None:
    component = make(1)
    style = {"mean": torch.tensor([0.1]), "deviation": torch.tensor([0.2])}
    first = component.combine(None, {"north": style, "south": {n: t + 1 for n, t in style.items()}})  # type: ignore[arg-type]
    assert first["mean"].shape == (2, 1)
    resumed = make(1)
    resumed.state = dict(component.state)
    later = resumed.combine(None, {"south": {n: t + 2 for n, t in style.items()}, "west": style})  # type: ignore[arg-type]
    assert later["owners"].dtype == torch.int64
    found = {int(o): (float(m), float(d)) for o, m, d in zip(*(later[n] for n in ("owners", "mean", "deviation")))}  # noqa: B905
    wanted = {"north": (0.1, 0.2), "south": (2.1, 2.2), "west": (0.1, 0.2)}
    assert found.keys() == {owner_number(site) for site in wanted}
    for site, values in wanted.items():
        assert found[owner_number(site)] == pytest.approx(values)
    assert_same(later, resumed.combine(None, {}))  # type: ignore[arg-type]
    assert make(1).combine(None, {}) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", [EVERY_IMAGE, f"{EVERY_IMAGE}+weight_perturbation", "fedavg+cse(statistics=channel,probability=1)"]
)
@pytest.mark.parametrize("dims", [2, 3])
def test_what_leaves_is_the_mean_style_of_the_unchanged_images(method: str, dims: int, tmp_path: Path) -> None:
    """In the second round images are changed, and the shared style is still that of the first."""
    server = tiny_server(tmp_path, tiny_recipe(method), dims)
    server.round()
    before = {name: site.data for name, site in server.engine.sites.items()}  # type: ignore[attr-defined]
    broadcast = Broadcast(1, server.state.weights, server.state.shared)
    for update in server.engine.train(broadcast, server.sites):
        assert isinstance(update, Update)
        data = before[update.site]
        images, _ = data.images.batch(data.training_indices(True))
        rows = images.double().flatten(2 if "channel" in method else 1)
        rows = rows if rows.dim() == 3 else rows[:, None]
        shared = update.shared["cse"]
        torch.testing.assert_close(shared["mean"], rows.mean((0, 2)).float())
        torch.testing.assert_close(shared["deviation"], rows.std(2, correction=0).mean(0).float())
        row = int((server.state.shared["cse"]["owners"] == owner_number(update.site)).nonzero())
        torch.testing.assert_close(server.state.shared["cse"]["mean"][row], shared["mean"])


def test_only_the_last_epoch_is_counted_and_a_batch_weighs_by_its_images() -> None:
    component = begin(make(1), {})
    parts = [torch.rand(2, 1, 4, 4), torch.rand(3, 1, 4, 4) + 1, torch.rand(1, 1, 4, 4) - 4]
    for last, part in zip((False, True, True), parts, strict=True):
        component.on_images(a_step(part, last_epoch=last))
    seen = torch.cat(parts[1:])
    shared = component.share(BARE)  # type: ignore[arg-type]
    torch.testing.assert_close(shared["mean"], seen.mean((1, 2, 3)).mean()[None])
    torch.testing.assert_close(shared["deviation"], seen.flatten(1).std(1, correction=0).mean()[None])


def test_a_site_without_labels_shares_the_style_of_its_other_images() -> None:
    data = tiny_site("north", 3, labelled=False)
    component = make(2)
    site = SiteRound("north", 0, None, {}, data, torch.device("cpu"), torch.Generator(), 2)  # type: ignore[arg-type]
    component.receive(site, {})
    component.on_images(a_step(torch.empty(0, 2, 8, 8), last_epoch=True))
    images, _ = data.images.batch(torch.arange(3))
    torch.testing.assert_close(component.share(site)["mean"], images.flatten(1).mean(1).mean()[None])


# ---- in a run -----------------------------------------------------------------------------------------------------


def test_probability_zero_is_fedavg_bit_for_bit_and_one_is_not(tmp_path: Path) -> None:
    ends = {}
    for method in ("fedavg", "fedavg+cse(probability=0)", EVERY_IMAGE):
        server = tiny_server(tmp_path / method, tiny_recipe(method, training={"rounds": 2, "local_epochs": 1}))
        server.fit()
        ends[method] = {n: t for n, t in final_tensors(server).items() if not n.startswith("server/")}
    plain, zero, one = ends.values()
    assert_same(plain, zero)
    assert any(not torch.equal(plain[name], one[name]) for name in plain)


def test_a_quarter_of_the_images_is_changed_by_default() -> None:
    count = 4000
    step = a_step(torch.rand(count, 1, 4, 4))
    before = step.images.clone()
    task = Task(("a", "b"), 1, 2)
    component = Cse(Cse.Settings(), Context(task, value_range=None, keeps_style=True))
    begin(component, pool_of(other=([5.0], [2.0]))).on_images(step)
    changed = (step.images != before).flatten(1).any(1).float().mean()
    assert abs(float(changed) - 0.25) < 4 * (0.25 * 0.75 / count) ** 0.5


@pytest.mark.parametrize(
    ("intensity", "said"),
    [
        ("zero-one", "cse: from 0 to 1 it cost Dice"),
        ("full-range", "cse: from 0 to 1 it cost Dice"),
        ("percentile", "cse: from 0 to 1 it cost Dice"),
        ("z-score", "cse changes almost nothing"),
        ("site", None),
        ("none", None),
    ],
)
def test_the_intensity_of_the_recipe_is_known_and_one_that_does_not_fit_is_said(
    intensity: str, said: str | None
) -> None:
    recipe = tiny_recipe("fedavg+cse", data={"intensity": intensity})
    workspace = build_workspace(recipe, tiny_task())
    assert all(c.context.value_range == recipe.data.value_range for c in workspace.components)
    found = [w for c in workspace.components for w in c.warnings()]
    assert len(found) == (said is not None)
    assert all(warning.startswith(said or "") for warning in found)
    off = build_workspace(tiny_recipe("fedavg+cse(probability=0)", data={"intensity": intensity}), tiny_task())
    assert off.warnings() == []


@pytest.mark.parametrize(("statistics", "numbers"), [("scalar", 1), ("channel", 2)])
def test_the_declared_shapes_follow_the_statistics(statistics: str, numbers: int) -> None:
    declared = build_workspace(tiny_recipe(f"fedavg+cse(statistics={statistics})"), tiny_task()).declared()["cse"]
    assert {one.name: one.shape for one in declared} == {"mean": (numbers,), "deviation": (numbers,)}


def polar_site(name: str, dark: bool, data: DataSettings) -> SiteData:
    """Discs that are darker than a bright ground, or brighter than a dark one, among others of the opposite kind.

    Eight images train and four test. What a disc is, only the brightness of the image tells.
    """
    generator, count, size = torch.Generator().manual_seed(sum(map(ord, name))), 12, 20
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
    kinds = torch.zeros(2, count, size, size)
    for kind, image, _ in np.ndindex(2, count, 3):
        centre = torch.randint(3, size - 3, (2, 1, 1), generator=generator)
        kinds[kind, image][(grid - centre).square().sum(0) < 8] = 1
    wanted, others = kinds[0], kinds[1] * (1 - kinds[0])
    ground = (0.75 if dark else 0.25) + 0.05 * torch.randn(count, 1, 1, generator=generator)
    noise = 0.05 * torch.randn(count, size, size, generator=generator)
    images = (ground + 0.25 * (-1 if dark else 1) * (wanted - 0.9 * others) + noise).clamp(0, 1)[:, None]
    samples = [Sample(name, f"{name}{i}", f"{name}{i}", None, None, None) for i in range(count)]
    moments = None
    if data.intensity == "site":
        moments = SiteMoments(
            {s.name: moments_of(image, False) for s, image in zip(samples, images, strict=True)}, data
        )
    found = ImageSet(images, wanted.to(torch.uint8), torch.ones(count, dtype=torch.bool), samples, moments=moments)
    found = found if moments is None else found.by_site(moments.of([sample.name for sample in samples[:8]]))
    return SiteData(name, found, {"train": torch.arange(8), "val": torch.arange(8, 12), "test": torch.arange(8, 12)})


def polar_dice(method: str, intensity: str, folder: Path) -> float:
    """Mean Dice of both sites' test images after training on the two of them."""
    training = {"rounds": 24, "local_epochs": 2, "batch_size": 4, "validate_every": 24, "select": "last"}
    recipe = tiny_recipe(
        method, network={"width": 4, "norm": "instance"}, training=training, data={"intensity": intensity}, seed=1
    )
    workspace = build_workspace(recipe, Task(("background", "disc"), 1, 2))
    data = [polar_site("dark", True, recipe.data), polar_site("bright", False, recipe.data)]
    sites = {one.site: Site(one, SiteStore(folder / one.site)) for one in data}
    server = Server(workspace, InProcess(workspace, sites), list(sites), folder / "server", Observer())
    server.fit()
    workspace.load(server.state.weights)
    scores = []
    for one in data:
        images, labels = one.images.batch(one.splits["test"])
        predicted = workspace.predict(images).argmax(1)
        scores.append(float(2 * (predicted * labels).sum() / (predicted.sum() + labels.sum())))
    return sum(scores) / 2


def test_cse_does_not_harm_sites_of_opposite_polarity_whose_intensities_are_their_own(tmp_path: Path) -> None:
    """On raw intensities it swaps the brightness that tells the polarity, and takes tens of points."""
    dice = {
        (intensity, method): polar_dice(method, intensity, tmp_path / intensity / method)
        for intensity in ("full-range", "site")
        for method in ("fedavg", EVERY_IMAGE)
    }
    assert dice["full-range", EVERY_IMAGE] < dice["full-range", "fedavg"] - 0.2
    assert dice["site", EVERY_IMAGE] > dice["site", "fedavg"] - 0.1
    assert dice["site", EVERY_IMAGE] > dice["full-range", EVERY_IMAGE] + 0.1
