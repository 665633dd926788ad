from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import support
from polyclinic.components.objectives.denoised_labels import DenoisedLabels, Prototypes, disturbed_looks
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled.masked_losses import masked_loss
from polyclinic.data.augmentation import Augmentation
from polyclinic.data.deformation import Deformation
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from polyclinic.recipe import AugmentationSettings, Recipe
from support import Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task

CPU = torch.device("cpu")
LOOSE = "dpl(confidence=0.4, uncertainty=0.1, passes=3, dropout=0.3)"
tiny_site = support.tiny_site


@torch.no_grad()
def shake(network: torch.nn.Module, seed: int, size: float = 1.2) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(size * (torch.rand(tensor.shape, generator=generator) - 0.5))


def half_labelled(name: str, count: int, dims: int = 2, size: int = 8, every: int = 2) -> SiteData:
    """Every second training image has lost its label; a site of one image has it."""
    data = tiny_site(name, count, dims, size)
    data.images.labelled[1:count:every] = False
    data.images.labels[1:count:every] = 0  # type: ignore[attr-defined]
    return data


def prepared(method: str = LOOSE, dims: int = 2, count: int = 7, **sections: dict) -> tuple[DenoisedLabels, SiteRound]:  # type: ignore[type-arg]
    workspace = build_workspace(tiny_recipe(method, **sections), tiny_task(dims))
    shake(workspace.network, {2: 8, 3: 11}[dims])  # all three classes survive, and not everywhere
    received = {n: t.detach().clone() for n, t in workspace.network.state_dict().items()}
    data = half_labelled("north", count, dims)
    site = SiteRound("north", 1, workspace.network, received, data, CPU, torch.Generator().manual_seed(5), 2)
    (component,) = (c for c in workspace.fresh_components({}) if isinstance(c, DenoisedLabels))
    return component, site


def step_of(
    site: SiteRound, rows: Sequence[int] = (1, 3), deformation: Deformation | None = None, labelled: int = 0
) -> Step:
    images, labels = site.data.images.batch(torch.tensor([labelled]))
    step = Step(site, site.network, images, labels, torch.Generator().manual_seed(9), 1, 0, 0, True, 0.5, 0.1)
    step.unlabelled_indices = torch.tensor(rows)
    weak, _ = site.data.images.batch(step.unlabelled_indices)
    step.deformation = deformation or Deformation(weak.dim() - 2)
    step.weak = step.deformation.apply(weak)
    step.strong = step.weak * 0.9 + 0.1
    site.network.train()
    step.output = site.network.features(step.inputs)
    return step


# ---- the equations, written out ------------------------------------------------------------------------------------


@torch.no_grad()
def naive_looks(
    network: UNet, images: torch.Tensor, generator: torch.Generator, passes: int, dropout: float, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Equations 1 and 2 with all looks in memory and every map dropped channel by channel."""
    probabilities, tempered = [], []
    for _ in range(passes):
        pyramid = [level.clone() for level in network.encode(images)]
        for level in pyramid:
            draws = torch.rand(level.shape[:2], generator=generator)
            for image in range(level.shape[0]):
                for channel in range(level.shape[1]):
                    level[image, channel] *= 0 if draws[image, channel] >= 1 - dropout else 1 / (1 - dropout)
        logits = network.head(network.decode(pyramid)[-1]).double()
        probabilities.append(logits.softmax(1))
        tempered.append((logits / temperature).softmax(1))
    mean, deviation = torch.stack(probabilities).mean(0), torch.stack(tempered).std(0)
    labels = mean.argmax(1)
    return labels, mean.max(1).values, deviation.gather(1, labels[:, None])[:, 0]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("passes", "dropout", "temperature"), [(2, 0.5, 2.0), (5, 0.3, 0.7), (10, 0.0, 2.0)])
def test_looks_are_those_of_the_equations(dims: int, passes: int, dropout: float, temperature: float) -> None:
    _, site = prepared(dims=dims)
    network = site.network.eval()
    images = site.data.images.batch(torch.arange(3))[0]
    with torch.no_grad():
        pyramid = network.encode(images)
        ours = disturbed_looks(network, pyramid, torch.Generator().manual_seed(3), passes, dropout, temperature)
    wanted = naive_looks(network, images, torch.Generator().manual_seed(3), passes, dropout, temperature)  # type: ignore[arg-type]
    agree = ours[0] == wanted[0]
    assert agree.double().mean() > 0.99  # where channels die, classes tie but for rounding
    torch.testing.assert_close(ours[1].double(), wanted[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[2][agree].double(), wanted[2][agree], rtol=1e-2, atol=1e-3)
    assert (wanted[2].max() > 0.02) == (dropout > 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([(5,), (2, 3), (2, 2, 2)]), st.data())
def test_prototypes_are_weighted_means_and_the_nearest_wins(
    batch: int, classes: int, width: int, shape: tuple[int, ...], data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    prototypes = Prototypes(classes, width, CPU)
    pixels: list[tuple[torch.Tensor, int, float]] = []
    for _ in range(2):
        features = torch.randn(batch, width, *shape, generator=generator)
        labels = torch.randint(classes, (batch, *shape), generator=generator)
        weights = torch.rand(batch, *shape, generator=generator) * (
            torch.rand(batch, *shape, generator=generator) < 0.4
        )
        prototypes.add(features, labels, weights)
        rows = features.movedim(1, -1).reshape(-1, width).double()
        pixels += [(f, int(y), float(w)) for f, y, w in zip(rows, labels.flatten(), weights.flatten(), strict=True)]
    found = prototypes.nearest(features)
    assert found.shape == labels.shape
    means = {}
    for k in range(classes):
        total = sum(w for _, y, w in pixels if y == k)
        if total:
            means[k] = sum(w * f for f, y, w in pixels if y == k) / total
    for f, ours in zip(rows, found.flatten().tolist(), strict=True):
        if means:
            distances = {k: float((f - mean).norm()) for k, mean in means.items()}
            assert distances[ours] <= min(distances.values()) + 1e-4


def naive_round(site: SiteRound, chosen: object, seed: int = 5) -> dict[int, torch.Tensor]:
    """Equations 1 to 5 over all unlabelled images, label 255 where a pixel is not kept."""
    network, generator = site.frozen(), torch.Generator().manual_seed(seed)
    rows, found = site.data.training_indices(False), {}
    batches = [rows[start : start + site.batch_size] for start in range(0, len(rows), site.batch_size)]
    features, labels, confidence, sure = [], [], [], []
    with torch.no_grad():
        for part in batches:
            images = site.data.images.batch(part)[0]
            y, p, s = naive_looks(network, images, generator, chosen.passes, chosen.dropout, chosen.temperature)  # type: ignore[arg-type,attr-defined]
            labels.append(y)
            confidence.append(p)
            sure.append((p > chosen.confidence) & (s < chosen.uncertainty))  # type: ignore[attr-defined]
            features.append(network.features(images).decoder[-1].double().movedim(1, -1))
    f, y, p, m = (torch.cat(parts) for parts in (features, labels, confidence, sure))
    nearest = torch.full((*y.shape, network.classes), torch.inf, dtype=torch.float64)
    for k in range(network.classes):
        chosen_pixels = m & (y == k)
        if chosen_pixels.any():
            weight = p[chosen_pixels][:, None]
            centre = (weight * f[chosen_pixels]).sum(0) / weight.sum()
            nearest[..., k] = (f - centre).norm(dim=-1)
    kept = m & (nearest.argmin(-1) == y)
    for row, label, mask in zip(rows.tolist(), y, kept, strict=True):
        found[row] = torch.where(mask, label, 255)
    assert 0.05 < kept.double().mean() < m.double().mean() < 0.95, "the case shows nothing"
    return found


@pytest.mark.parametrize("dims", [2, 3])
def test_labels_of_a_round_are_those_of_the_equations_over_the_whole_site(dims: int) -> None:
    component, site = prepared(dims=dims)
    wanted = naive_round(site, component.settings)
    component.receive(site, {})
    assert component._labels is not None
    assert component._labels.dtype == torch.uint8
    assert len(component._labels) == len(wanted) == 3
    for row, labels in wanted.items():
        assert torch.equal(component._labels[component._places[row]].long(), labels)


@pytest.mark.parametrize("moves", [False, True])
def test_the_loss_is_masked_and_follows_the_views(moves: bool) -> None:
    component, site = prepared()
    wanted = naive_round(site, component.settings)
    component.receive(site, {})
    augmentation = Augmentation(AugmentationSettings(flip=0.5, affine=1.0, elastic=0.5))
    shape = (2, 2, 8, 8)
    drawn = augmentation.draw(shape, torch.Generator().manual_seed(2), CPU) if moves else Deformation(2)
    step = step_of(site, (3, 1), drawn)
    labels = drawn.apply(torch.stack([wanted[3], wanted[1]]), "nearest")
    mask = labels != 255
    expected = masked_loss(step.unlabelled.logits, labels.where(mask, 0), mask)
    (term,) = component.loss(step).values()
    torch.testing.assert_close(term, expected)
    assert term > 0
    if moves:
        still = torch.stack([wanted[3], wanted[1]])
        assert not torch.equal(labels, still)


def test_where_nothing_is_kept_the_term_is_zero_without_a_pull() -> None:
    component, site = prepared("dpl(confidence=0.9999)")
    component.receive(site, {})
    assert (component._labels == 255).all()  # type: ignore[union-attr]
    (term,) = component.loss(step_of(site)).values()
    gradients = torch.autograd.grad(term, list(site.network.parameters()), allow_unused=True)
    assert float(term.detach()) == 0
    assert all(g is None or not g.any() for g in gradients)


# ---- patches, and sites of other kinds -----------------------------------------------------------------------------


def test_patches_get_labels_on_their_own_view_and_prototypes_of_all_steps_so_far() -> None:
    component, site = prepared(data={"patch": [6, 6]})
    component.receive(site, {})
    assert component._labels is None
    teacher = site.frozen()
    chosen = component.settings
    looks = []
    for number in range(2):
        step = step_of(site)
        step.weak, step.strong = (view[..., number : number + 6, 1:7] for view in (step.weak, step.strong))
        step.output = site.network.features(torch.cat([step.images[..., :6, :6], step.strong]))
        generator = torch.Generator().manual_seed(9)
        looks.append(naive_looks(teacher, step.weak, generator, chosen.passes, chosen.dropout, chosen.temperature))  # type: ignore[arg-type]
        (term,) = component.loss(step).values()
        drawn = step.generator.get_state()
        (again,) = component.loss(step).values()
        assert torch.equal(term, again)
        assert torch.equal(drawn, step.generator.get_state())
        y, p, s = looks[-1]
        targets = step.once("denoised_labels/targets", lambda: pytest.fail("the targets were made in the loss"))
        mask = targets != 255
        sure = (p > chosen.confidence) & (s < chosen.uncertainty)
        assert (mask <= sure).all()
        assert torch.equal(targets[mask], y[mask])
    total = torch.zeros(3, dtype=torch.float64)
    for y, p, s in looks:
        total.index_add_(0, y.flatten(), (p * ((p > chosen.confidence) & (s < chosen.uncertainty))).flatten())
    torch.testing.assert_close(component._prototypes.weights.double(), total, rtol=1e-5, atol=1e-5)


def test_a_patch_as_large_as_the_images_is_the_whole_image() -> None:
    component, site = prepared(data={"patch": [8, 8]})
    component.receive(site, {})
    assert component._labels is not None


def test_images_of_many_sizes_get_labels_in_the_step() -> None:
    component, site = prepared()
    images = site.data.images
    assert isinstance(images, ImageSet)
    shapes = [image[:, : 8 - 2 * (i % 2)] for i, image in enumerate(images.images)]
    ragged = ImageSet(shapes, [s[0].to(torch.uint8) for s in shapes], images.labelled, images.samples)
    site.data = replace(site.data, images=ragged)
    component.receive(site, {})
    assert component._labels is None
    assert component.loss(step_of(site, (1,), labelled=3)).keys() == {"denoised_labels"}


def test_a_site_without_unlabelled_images_does_nothing() -> None:
    component, site = prepared(count=1)
    component.receive(site, {})
    step = step_of(site, (0,))
    step.weak = step.strong = None
    assert component.loss(step) == {}
    assert not hasattr(component, "_teacher")


def test_strength_zero_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    component, site = prepared("dpl(weight=0)")
    before = site.generator.get_state()
    monkeypatch.setattr(UNet, "encode", None)
    component.receive(site, {})
    assert torch.equal(before, site.generator.get_state())
    monkeypatch.undo()
    assert component.loss(step_of(site)) == {}


def test_an_image_is_encoded_twice_a_round_and_never_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    component, site = prepared("dpl(passes=4)")
    counts = {"encode": 0, "decode": 0}
    plain = {name: getattr(UNet, name) for name in counts}
    for name in counts:

        def counting(network: UNet, given: object, name: str = name) -> list[torch.Tensor]:
            counts[name] += len(given if isinstance(given, torch.Tensor) else given[0])  # type: ignore[index]
            assert not network.training
            return plain[name](network, given)  # type: ignore[no-any-return]

        monkeypatch.setattr(UNet, name, counting)
    component.receive(site, {})
    assert counts == {"encode": 2 * 3, "decode": (4 + 2) * 3}
    monkeypatch.undo()
    step = step_of(site)
    monkeypatch.setattr(UNet, "encode", None)
    component.loss(step)


# ---- runs ----------------------------------------------------------------------------------------------------------

RUN = "dpl(confidence=0.34, uncertainty=0.2, passes=3)"


def moving(method: str) -> Recipe:
    return tiny_recipe(method, augmentation={"flip": 0.5, "affine": 0.5}, training={"rounds": 2, "local_epochs": 1})


def result(folder: Path, method: str) -> dict[str, torch.Tensor]:
    server = tiny_server(folder, moving(method), observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    losses = [
        terms["denoised_labels"] for event in keeper.events for terms in event["losses"].values() if len(terms) > 1
    ]
    assert not method.startswith("dpl(c") or (len(losses) == 2 * 2 and max(losses) > 0)
    return final_tensors(server)


def test_a_run_repeats_resumes_and_differs_from_fedavg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "tiny_site", half_labelled)
    first = result(tmp_path / "first", RUN)
    assert_same(first, result(tmp_path / "again", RUN))
    recipe = moving(RUN)
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "cut", recipe, observer=Killer(lambda what, n, _: (what, n) == ("site", 1))).fit()
    resumed = tiny_server(tmp_path / "cut", recipe)
    resumed.fit()
    assert_same(first, final_tensors(resumed))
    other = result(tmp_path / "other", "dpl(weight=0)")
    assert any(not torch.equal(first[n], t) for n, t in other.items())
    assert not any("denoised_labels" in name for name in first)


def test_patches_and_sites_without_labels_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "tiny_site", lambda *given: half_labelled(*given, every=1))
    for dims in (2, 3):
        recipe = tiny_recipe(RUN, data={"patch": [4] * dims}, network={"norm": "group"}, training={"rounds": 1})
        server = tiny_server(tmp_path / str(dims), recipe, dims, observer=(keeper := Keeper()))
        server.fit()
        assert not keeper.refusals

    def unlabelled(name: str, count: int, dims: int = 2) -> SiteData:
        return tiny_site(name, count, dims, labelled=name != "south")

    monkeypatch.setattr(support, "tiny_site", unlabelled)
    server = tiny_server(tmp_path / "none", tiny_recipe(RUN), observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert keeper.events[0]["losses"]["south"].keys() == {"denoised_labels"}


def test_half_precision_stays_outside_the_loss_and_the_prototypes() -> None:
    component, site = prepared()
    component.receive(site, {})
    step = step_of(site)
    step.output.logits = step.output.logits.bfloat16()
    full = masked_loss(step.unlabelled.logits.float(), *targets(component, step))
    features, labels = (
        torch.randn(2, 3, 5, generator=site.generator),
        torch.randint(2, (2, 5), generator=site.generator),
    )
    plain, careful = Prototypes(2, 3, CPU), Prototypes(2, 3, CPU)
    plain.add(features, labels, torch.ones(2, 5))
    with torch.autocast("cpu", torch.bfloat16):
        (term,) = component.loss(step).values()
        careful.add(features, labels, torch.ones(2, 5))
        assert torch.equal(careful.nearest(features), plain.nearest(features))
    assert term.dtype == torch.float32
    torch.testing.assert_close(term, full)
    assert torch.equal(careful.sums, plain.sums)


def targets(component: DenoisedLabels, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    labels = component._targets(step, step.weak)  # type: ignore[arg-type]
    return labels.where(labels != 255, 0), labels != 255
