from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from polyclinic.components.base import Context
from polyclinic.components.objectives.fedmix import FedMix, groups_of_cases
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.segmentation_loss import loss_options, segmentation_loss, soft_label_loss
from polyclinic.core.seeds import owner_number
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Tensors, Update
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.base import SegmentationNetwork
from support import Keeper, Keeping, tiny_recipe, tiny_server, tiny_site, tiny_task

CPU = torch.device("cpu")


LOSS = loss_options(tiny_recipe().training, tiny_recipe().policies)  # the recipe's, which FedMix takes


def fedmix(dims: int = 2, size: tuple[int, ...] | None = None, **chosen: Any) -> FedMix:
    return FedMix(FedMix.Settings(**chosen), Context(tiny_task(dims), image_size=size))


def site_of(data: SiteData, network: SegmentationNetwork | None = None, dims: int = 2) -> SiteRound:
    network = network or build_workspace(tiny_recipe(), tiny_task(dims)).network
    return SiteRound(data.site, 0, network, {}, data, CPU, torch.Generator(), 2)


def pool(count: int, size: int = 8, dims: int = 2, images: int = 5) -> Tensors:
    """Means of two other sites."""
    generator = torch.Generator().manual_seed(9)
    tensors: Tensors = {}
    for owner in (3, 4):
        votes = torch.randint(3, (count, images, *[size] * dims), generator=generator)
        counts = torch.stack([(votes == k).sum(1) for k in range(3)], 1).to(torch.uint8)
        tensors |= {
            f"images/{owner}": torch.rand(count, 2, *[size] * dims, generator=generator),
            f"labels/{owner}": counts,
        }
    return tensors


def step_of(network: SegmentationNetwork, dims: int = 2, seed: int = 0) -> Step:
    data = tiny_site("north", 3, dims)
    images, labels = data.images.batch(torch.arange(2))
    generator = torch.Generator().manual_seed(seed)
    return Step(site_of(data, network), network, images, labels, generator, 1, 0, 0, True, 0.5, 0.01)


def run(component: FedMix, step: Step) -> Tensor:
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    loss = component.objective(step)
    assert loss is not None
    return loss


@pytest.mark.parametrize(("dims", "norm"), [(2, "instance"), (2, "batch"), (2, "group"), (3, "instance")])
def test_the_loss_is_the_papers(dims: int, norm: str) -> None:
    """Equation 1, its inner product by a difference of losses along the mean; the means' rows by the same draw."""
    lam, network = 0.2, build_workspace(tiny_recipe(network={"norm": norm}), tiny_task(dims)).network.double()
    component, means = fedmix(dims, lam=lam), pool(2, dims=dims)
    step = step_of(network, dims)
    step.images = step.images.double()
    component.receive(step.site, means)
    images, labels = step.images, step.labels
    ours = run(component, step)
    row = int(torch.randint(4, (1,), generator=torch.Generator().manual_seed(0)))
    owner, index = (3, row) if row < 2 else (4, row - 2)
    mean = means[f"images/{owner}"][index].double()
    shares = means[f"labels/{owner}"][index].double()[None] / 5

    def own(moved: Tensor) -> Tensor:
        return segmentation_loss(network(moved), labels, **LOSS)

    with torch.no_grad():
        scaled, tiny = (1 - lam) * images, 1e-3
        slope = (own(scaled + tiny * mean) - own(scaled - tiny * mean)) / (2 * tiny)
        wanted = (
            (1 - lam) * own(scaled) + lam * soft_label_loss(network(scaled), shares, **LOSS) + lam * (1 - lam) * slope
        )
    torch.testing.assert_close(ours.item(), wanted.item(), rtol=1e-3, atol=1e-4)


def test_gradients_go_through_the_slope() -> None:
    """Against the naive form: a gradient of the whole written-out loss, with the slope image by image."""
    lam = 0.3
    network = build_workspace(tiny_recipe(network={"norm": "instance"}), tiny_task()).network
    component, means = fedmix(lam=lam), {n: t for n, t in pool(1).items() if n.endswith("3")}
    step = step_of(network)
    component.receive(step.site, means)
    images, labels, parameters = step.images, step.labels, list(network.parameters())
    ours = torch.autograd.grad(run(component, step), parameters)
    scaled = [((1 - lam) * image).requires_grad_() for image in images]
    logits = network(torch.stack(scaled))
    own = segmentation_loss(logits, labels, **LOSS)
    total = (1 - lam) * own + lam * soft_label_loss(logits, means["labels/3"].float() / 5, **LOSS)
    for image in scaled:
        (slope,) = torch.autograd.grad(own, image, create_graph=True)
        for value, other in zip(slope.flatten(), means["images/3"][0].flatten(), strict=True):
            total = total + lam * (1 - lam) * value * other
    wanted = torch.autograd.grad(total, parameters)
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_naive_form_mixes_images() -> None:
    lam, network = 0.2, build_workspace(tiny_recipe(), tiny_task()).network
    component, means = fedmix(lam=lam, form="naive"), {n: t for n, t in pool(1).items() if n.endswith("3")}
    step = step_of(network)
    component.receive(step.site, means)
    mixed = (1 - lam) * step.images + lam * means["images/3"]
    ours = run(component, step)
    torch.testing.assert_close(step.images, mixed)
    logits, shares = network(mixed), means["labels/3"].float() / 5
    own, other = segmentation_loss(logits, step.labels, **LOSS), soft_label_loss(logits, shares, **LOSS)
    wanted = (1 - lam) * own + lam * other
    torch.testing.assert_close(ours, wanted)
    assert component.used_equations()[0].startswith("NaiveMix")


def test_before_there_are_means_nothing_is_changed() -> None:
    component, network = fedmix(), build_workspace(tiny_recipe(), tiny_task()).network
    step = step_of(network)
    before, state = step.images.clone(), step.generator.get_state()
    component.receive(step.site, {})
    component.on_images(step)
    assert component.objective(step) is None
    assert torch.equal(step.images, before)
    assert torch.equal(step.generator.get_state(), state)


@pytest.mark.parametrize(
    ("cases", "size", "groups"),
    [(list("abcdefg"), 3, 2), (list("ab"), 3, 0), (list("aaaabb"), 2, 2), (list("aabbcc"), 3, 2), ([], 2, 0)],
)
def test_every_mean_is_of_so_many_different_cases(cases: list[str], size: int, groups: int) -> None:
    found = groups_of_cases(cases, size)
    assert len(found) == groups
    assert all(len({cases[position] for position in group}) == size == len(group) for group in found)
    positions = [position for group in found for position in group]
    assert len(set(positions)) == len(positions)
    names = [[cases[position] for position in group] for group in found]
    backwards = groups_of_cases(cases[::-1], size)
    assert [[cases[::-1][position] for position in group] for group in backwards] == names


def test_a_mean_is_that_of_its_images_and_labels() -> None:
    data, component = tiny_site("north", 7), fedmix(images=3)
    component.receive(site_of(data), {})
    shared = component.share(site_of(data))
    cases = [sample.case for sample in data.images.samples[:7]]
    groups = groups_of_cases(cases, 3)
    assert len(groups) == len(shared["images"]) == 2
    for row, group in enumerate(groups):
        for channel in range(2):
            wanted = sum(data.images[i][0][channel] for i in group) / 3
            torch.testing.assert_close(shared["images"][row, channel], wanted)
        for number in range(3):
            wanted = sum((data.images[i][1] == number).int() for i in group)
            assert torch.equal(shared["labels"][row, number], wanted.to(torch.uint8))
    assert len(fedmix_of(component, averages=1).share(site_of(data))["images"]) == 1


def fedmix_of(component: FedMix, **chosen: Any) -> FedMix:
    other = fedmix(**{**component.settings.model_dump(), **chosen})
    other._arrived = component._arrived
    return other


@pytest.mark.parametrize(("size", "wanted"), [((4, 4), (4, 4)), ((8, 8), (8, 8)), (None, (8, 6))])
def test_images_without_a_common_size(size: tuple[int, ...] | None, wanted: tuple[int, ...]) -> None:
    """Patches where the training has a size, else stretched to the size of the first."""
    shapes = [(8, 6), (8, 8), (10, 6)]
    images = [torch.full((2, *shape), float(number)) for number, shape in enumerate(shapes)]
    labels = [torch.full(shape, number % 3, dtype=torch.uint8) for number, shape in enumerate(shapes)]
    samples = [Sample("s", f"{i}", f"{i}", None, None, None) for i in range(3)]
    data = SiteData("s", ImageSet(images, labels, torch.ones(3, dtype=torch.bool), samples), {"train": torch.arange(3)})
    component = fedmix(size=size, images=3)
    component.receive(site_of(data), {})
    # Which is the first follows from the cases' names.
    first = groups_of_cases(["0", "1", "2"], 3)[0][0]
    shared = component.share(site_of(data))
    assert tuple(shared["images"].shape[2:]) == (wanted if size else shapes[first])
    if size != (8, 8):  # smaller images are padded there
        torch.testing.assert_close(shared["images"], torch.ones_like(shared["images"]))
        assert shared["labels"].eq(1).all()


def test_a_mean_of_another_size_is_stretched() -> None:
    network = build_workspace(tiny_recipe(), tiny_task()).network
    component, step = fedmix(lam=0.2), step_of(network)
    component.receive(step.site, {**pool(1, size=6)})
    assert run(component, step).isfinite()
    mean, shares = component._drawn(step)
    assert mean.shape == (1, 2, 8, 8)
    torch.testing.assert_close(shares.sum(1), torch.ones(1, 8, 8))


class Losing(InProcess):
    """North's first answer is lost; what each site sends is written down."""

    sent: ClassVar[list[tuple[str, int, int]]] = []

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            assert isinstance(answer, Update)
            self.sent.append((answer.site, broadcast.round, len(answer.shared["fedmix"]["images"])))
            yield Failure("north", 0, "late") if (answer.site, broadcast.round) == ("north", 0) else answer


def test_means_are_sent_once_and_again_where_they_did_not_arrive(tmp_path: Path) -> None:
    Losing.sent = []
    server = tiny_server(tmp_path, tiny_recipe("fedmix(images=3)"), engine=Losing)
    server.fit()
    counts = {(site, number): count for site, number, count in Losing.sent}
    assert [counts["north", number] for number in range(3)] == [1, 1, 0]
    assert [counts["south", number] for number in range(3)] == [1, 0, 0]
    assert [counts["west", number] for number in range(3)] == [0, 0, 0]  # one image is no mean
    owners = {f"images/{owner_number(site)}" for site in ("north", "south", "west")}
    assert owners == {name for name in server.state.shared["fedmix"] if name.startswith("images/")}


@pytest.mark.parametrize("form", ["taylor", "naive"])
def test_means_change_the_training_from_the_second_round_on(form: str, tmp_path: Path) -> None:
    plain = tiny_server(tmp_path / "plain", tiny_recipe("fedavg"))
    mixed = tiny_server(tmp_path / "mixed", tiny_recipe(f"fedmix(images=3,form={form})"), observer=(keeper := Keeper()))
    for number in range(2):
        for server in (plain, mixed):
            server.round()
        name = next(iter(plain.state.weights))
        assert torch.equal(plain.state.weights[name], mixed.state.weights[name]) == (number == 0)
    assert not keeper.refusals


def test_the_same_means_leave_whatever_the_seed(tmp_path: Path) -> None:
    sent = []
    for seed in (0, 1):
        recipe = tiny_recipe("fedmix(images=3)").model_copy(update={"seed": seed})
        server = tiny_server(tmp_path / str(seed), recipe, engine=Keeping)
        server.round()
        sent.append(server.engine.updates[0].shared["fedmix"])  # type: ignore[attr-defined]
    assert torch.equal(sent[0]["images"], sent[1]["images"])


def test_declared_are_pictures() -> None:
    network = build_workspace(tiny_recipe(), tiny_task()).network
    declared = fedmix(images=7).leaves(network)
    assert [(one.name, one.pictures_of) for one in declared] == [("images", 7), ("labels", 7)]
    assert all("PICTURES" in one.what for one in declared)
    assert fedmix(lam=0).leaves(network) == ()
    assert declared[0].shape == ("means", 2, "height", "width")
    assert fedmix(size=(4, 6)).leaves(network)[1].shape == ("means", 3, 4, 6)
