from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixed_sites import another_step
from polyclinic.components.base import Context
from polyclinic.components.objectives.cdpa import Cdpa
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import Prototypes
from polyclinic.components.toolbox.prototypes.views import MapView
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.networks import build_network
from polyclinic.networks.base import Features
from polyclinic.recipe import NetworkSettings
from step_support import BARE
from support import Keeper, tiny_recipe, tiny_server, tiny_task

CHANNELS = 5


def setting(dims: int = 2, size: int = 16, classes: int = 3, depth: int = 3, batch: int = 2, **settings: Any) -> Any:
    """A component, a network with its modules, and a step after the forward pass."""
    task = Task(tuple(f"class{i}" for i in range(classes)), 1, dims)
    network = build_network(task, NetworkSettings(width=2, depth=depth), seed=0)
    component = Cdpa(Cdpa.Settings(channels=CHANNELS, **{"weight": 1.0, **settings}), Context(task))
    torch.manual_seed(1)
    component.install(network)
    images = torch.rand(batch, 1, *[size] * dims)
    labels = torch.randint(0, classes, (batch, *[size] * dims))
    step = Step(BARE, network, images, labels, torch.Generator(), 1, 0, 0, True, 0.5, 0.1)  # type: ignore[arg-type]
    step.output = network.features(images)
    return SimpleNamespace(component=component, network=network, step=step, depth=depth, dims=dims)


def receive(case: Any, shared: dict[str, Tensor]) -> None:
    case.component.receive(SimpleNamespace(network=case.network, device=torch.device("cpu")), shared)


def global_prototypes(case: Any, classes: tuple[int, ...] = (0, 1, 1, 2)) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    width = CHANNELS * (case.depth - 1)
    owners = torch.tensor(classes)
    return {
        key: value
        for stream in ("encoder", "decoder")
        for key, value in {
            stream: torch.randn(len(classes), width, generator=generator),
            f"{stream}_classes": owners,
        }.items()
    }


def dense(case: Any, stream: str, stride: int, context: str) -> tuple[Tensor, Tensor]:
    """Every pixel's embedding, formed (eqs. 10-12), and its label."""
    output = case.step.output
    levels = output.encoder[:-1] if stream == "encoder" else output.decoder[::-1]
    grid = tuple(s // stride for s in case.step.labels.shape[1:])
    slots = []
    for k, linear in enumerate(case.network.extras[f"cdpa_{stream}"]):
        deeper = levels[k + 1] if context == "adjacent" else levels[-1]
        stacked = torch.cat([levels[k], F.interpolate(deeper, size=levels[k].shape[2:], mode="nearest")], dim=1)
        fused = linear(stacked.movedim(1, -1)).movedim(-1, 1)
        slots.append(F.interpolate(fused, size=grid, mode="nearest"))
    rows = torch.cat(slots, dim=1).flatten(2).transpose(1, 2).flatten(0, 1)
    labels = F.interpolate(case.step.labels[:, None].float(), size=grid, mode="nearest").long().flatten()
    return rows, labels


def naive_loss(case: Any, shared: dict[str, Tensor], strides: dict[str, int], **settings: Any) -> Tensor:
    """Eqs. 15-17 pixel by pixel."""
    tau, context = settings.get("tau", 0.4), settings.get("context", "adjacent")
    everything, total = settings.get("anchors", "all") == "all", torch.zeros(())
    for stream in ("encoder", "decoder"):
        rows, labels = dense(case, stream, strides[stream], context)
        vectors, owners = shared[stream], shared[f"{stream}_classes"]
        per_class = []
        for c in range(0 if everything else 1, 10):
            anchors = rows[labels == c]
            if not len(anchors) or not (owners == c).any():
                continue
            mean = vectors[owners == c].mean(0)
            terms = []
            for anchor in anchors:
                weights = torch.exp(F.cosine_similarity(anchor[None], vectors) / tau)
                contrast = -torch.log(weights[owners == c].sum() / weights.sum())
                square = (anchor - mean).square()
                summed = settings.get("consistency") == "sum"
                terms.append(contrast + (2 * square.sum() if summed else square.mean()))
            per_class.append(torch.stack(terms).mean())
        total = total + (torch.stack(per_class).mean() if per_class else 0.0) / 2
    return settings.get("weight", 1.0) * total


@pytest.mark.parametrize(
    "case_settings",
    [
        {},
        {"dims": 3, "size": 16, "batch": 1, "decoder_stride": 2},
        {"classes": 2, "weight": 0.3},
        {"context": "deepest"},
        {"encoder_stride": 1, "decoder_stride": 4, "context": "deepest", "classes": 2},
        {"anchors": "foreground", "tau": 0.1},
        {"consistency": "sum"},
        {"size": 12, "depth": 2},
    ],
    ids=str,
)
def test_loss_and_all_its_gradients_equal_the_dense_equations(case_settings: dict[str, Any]) -> None:
    case = setting(**case_settings)
    classes = case_settings.get("classes", 3)
    shared = global_prototypes(case, tuple(c for c in (0, 1, 1, 2) if c < classes))
    receive(case, shared)
    terms = case.component.loss(case.step)
    assert terms.keys() == {"cdpa_contrast", "cdpa_consistency"}
    strides = {s: case_settings.get(f"{s}_stride", 4) for s in ("encoder", "decoder")}
    naive = naive_loss(case, shared, strides, **case_settings)
    ours = sum(terms.values())
    torch.testing.assert_close(ours, naive, rtol=1e-5, atol=1e-5)
    parameters = [p for p in case.network.parameters() if p.requires_grad]
    got = torch.autograd.grad(ours, parameters, retain_graph=True, allow_unused=True)
    wanted = torch.autograd.grad(naive, parameters, allow_unused=True)
    reached = 0
    for one, other in zip(got, wanted, strict=True):
        one, other = (torch.zeros(1) if g is None else g for g in (one, other))
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
        reached += bool(one.any())
    assert reached > len(parameters) // 2


@pytest.mark.parametrize("weight", [0.0, 2.5])
def test_the_weight_scales_both_terms(weight: float) -> None:
    case = setting(weight=weight)
    shared = global_prototypes(case)
    receive(case, shared)
    total = sum(case.component.loss(case.step).values(), torch.zeros(()))
    naive = naive_loss(case, shared, {"encoder": 4, "decoder": 4}) if weight else torch.zeros(())
    torch.testing.assert_close(total, weight * naive, rtol=1e-5, atol=1e-5)
    assert bool(case.network.extras) == bool(weight)


def test_prototypes_that_leave_are_class_means_of_the_dense_embedding() -> None:
    """Eq. 9 over all pixels of the last epoch; a second pass over a batch is not counted again."""
    case = setting()
    receive(case, {})
    assert case.component.loss(case.step) == {}
    case.component.loss(case.step)
    first = {s: dense(case, s, 4, "adjacent") for s in ("encoder", "decoder")}
    images, labels = torch.rand(2, 1, 16, 16), torch.randint(0, 2, (2, 16, 16))
    case.step = another_step(case.step, images=images, labels=labels)
    case.step.output = case.network.features(case.step.images)
    case.component.loss(case.step)
    second = {s: dense(case, s, 4, "adjacent") for s in ("encoder", "decoder")}
    shared = case.component.share(BARE)
    declared = {one.name: one for one in case.component.leaves(case.network)}
    assert shared.keys() == declared.keys()
    for stream in ("encoder", "decoder"):
        rows, labels = (torch.cat(pair) for pair in zip(first[stream], second[stream], strict=True))
        for c in range(3):
            torch.testing.assert_close(shared[stream][c], rows[labels == c].mean(0), rtol=1e-4, atol=1e-5)
            assert shared[f"{stream}_pixels"][c] == (labels == c).sum()


def test_batch_means_weigh_every_batch_alike() -> None:
    case = setting(prototypes="batches")
    receive(case, {})
    means = []
    for size in (2, 1):
        images, labels = torch.rand(size, 1, 16, 16), torch.randint(0, 2, (size, 16, 16))
        case.step = another_step(case.step, images=images, labels=labels)
        case.step.output = case.network.features(case.step.images)
        case.component.loss(case.step)
        rows, labels = dense(case, "encoder", 4, "adjacent")
        means.append(torch.stack([rows[labels == c].mean(0) for c in range(2)]))
    shared = case.component.share(BARE)
    torch.testing.assert_close(shared["encoder"][:2], (means[0] + means[1]) / 2, rtol=1e-4, atol=1e-5)
    assert not shared["encoder"][2].any()
    assert shared["encoder_pixels"][2] == 0


def test_only_the_last_epoch_makes_prototypes() -> None:
    case = setting()
    receive(case, {})
    case.step.last_epoch = False
    assert case.component.loss(case.step) == {}
    assert not case.component.share(BARE)["encoder_pixels"].any()


def test_released_anchors_without_foreground_in_the_batch_give_zero_and_no_gradient() -> None:
    case = setting(anchors="foreground")
    receive(case, global_prototypes(case))
    case.step.labels = torch.zeros_like(case.step.labels)
    terms = case.component.loss(case.step)
    assert all(value == 0 for value in terms.values())
    gradients = torch.autograd.grad(sum(terms.values()), list(case.network.extras.parameters()), allow_unused=True)
    assert all(g is None or not g.any() for g in gradients)


def test_a_class_without_a_prototype_is_left_out() -> None:
    case = setting()
    receive(case, global_prototypes(case, (0, 2)))
    torch.testing.assert_close(
        sum(case.component.loss(case.step).values()),
        naive_loss(case, global_prototypes(case, (0, 2)), {"encoder": 4, "decoder": 4}),
        rtol=1e-5,
        atol=1e-5,
    )


def test_without_foreground_in_the_batch_the_background_is_aligned_alone() -> None:
    case = setting()
    shared = global_prototypes(case)
    receive(case, shared)
    case.step.labels = torch.zeros_like(case.step.labels)
    wanted = naive_loss(case, shared, {"encoder": 4, "decoder": 4})
    assert wanted > 0
    torch.testing.assert_close(sum(case.component.loss(case.step).values()), wanted, rtol=1e-5, atol=1e-5)


def class_means_after_shared_shifts(anchors: str) -> Tensor:
    """Class means ``(2, channels)`` when one vector, added to all pixels, is all that the loss can train.

    Pixels are two overlapping clouds, a quarter of them foreground; prototypes follow the pixels every round.
    """
    generator = torch.Generator().manual_seed(0)
    component = Cdpa(Cdpa.Settings(anchors=anchors, weight=1.0), Context(Task(("background", "vessel"), 1, 2)))
    labels = (torch.rand(1, 24, 24, generator=generator) < 0.25).long()
    pixels = 0.2 * torch.randn(2, 16, generator=generator)[labels].movedim(-1, 1)
    pixels = pixels + torch.randn(pixels.shape, generator=generator)
    shift = torch.zeros(1, 16, 1, 1, requires_grad=True)

    def means() -> Tensor:
        sums, counts = MapView(pixels + shift.detach(), labels).class_sums(2)
        return sums / counts[:, None]

    for _ in range(20):
        prototypes = Prototypes(means(), torch.tensor([0, 1]), 2)
        for _ in range(10):
            loss = sum(component.align(MapView(pixels + shift, labels), prototypes).values(), torch.zeros(()))
            (gradient,) = torch.autograd.grad(loss, shift)
            shift = (shift - gradient).detach().requires_grad_()
    return means()


def test_defaults_are_those_that_were_measured() -> None:
    assert (Cdpa.Settings().anchors, Cdpa.Settings().weight) == ("all", 0.1)


@pytest.mark.parametrize(("anchors", "collapses"), [("all", False), ("foreground", True)])
def test_cdpa_does_not_pull_the_classes_together(anchors: str, collapses: bool) -> None:
    """With anchors of the foreground alone a shift of all pixels lowers the loss and separates nothing."""
    first, second = class_means_after_shared_shifts(anchors)
    cosine = float(F.cosine_similarity(first, second, dim=0))
    assert cosine > 0.95 if collapses else cosine < 0.3


def test_half_precision_features_give_a_float32_loss() -> None:
    case = setting()
    receive(case, global_prototypes(case))
    exact = sum(case.component.loss(case.step).values())
    output = case.step.output
    encoder, decoder = ([f.bfloat16() for f in maps] for maps in (output.encoder, output.decoder))
    case.step.output = Features(encoder, decoder, output.logits)
    with torch.autocast("cpu", torch.bfloat16):
        half = sum(case.component.loss(case.step).values())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=0.05, atol=0.05)


def test_server_clusters_each_class_over_the_sites_that_have_it() -> None:
    case = setting(classes=3)
    a, b = torch.tensor([1.0, 0.0] * 5), torch.tensor([0.0, 1.0] * 5)
    near = [a, a + 0.01 * b, b, b + 0.01 * a]
    shared = {}
    for number, vector in enumerate(near):
        means = torch.stack([vector, 3 * vector, torch.zeros(10)])
        pixels = torch.tensor([5, 0 if number == 3 else 7, 0])
        shared[f"site{number}"] = {
            "encoder": means, "decoder": means, "encoder_pixels": pixels, "decoder_pixels": pixels
        }  # fmt: skip
    server = SimpleNamespace(network=case.network)
    result = case.component.combine(server, shared)
    owners = result["encoder_classes"].tolist()
    assert owners.count(0) == 2
    torch.testing.assert_close(result["encoder"][0], (near[0] + near[1]) / 2)
    torch.testing.assert_close(result["encoder"][1], (near[2] + near[3]) / 2)
    assert owners.count(1) == 1  # three vectors: two near ones and a third whose first neighbour is one of them
    assert 2 not in owners
    one = case.component.combine(server, {"only": shared["site0"]})
    torch.testing.assert_close(one["decoder"], torch.stack([near[0], 3 * near[0]]))
    same = case.component.combine(server, {f"s{i}": shared["site0"] for i in range(6)})
    assert same["encoder_classes"].tolist() == [0, 1]


def test_a_class_absent_everywhere_is_never_broadcast(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbcs"), sizes={"south": 3}, observer=(keeper := Keeper()))
    server.fit()
    shared = server.state.shared["cdpa"]
    assert 2 not in shared["encoder_classes"].tolist()
    assert keeper.events[0]["losses"]["south"].keys() == {"segmentation"}
    assert {"cdpa_contrast", "cdpa_consistency"} < keeper.events[1]["losses"]["south"].keys()


def test_ablations_of_table_2_by_expression() -> None:
    def names(expression: str) -> list[str]:
        return [part.component for part in parse_method(expression).parts]

    assert names("fedbcs") == ["weighted_mean", "fsr", "cdpa"]
    assert names("fedbcs-fsr") == ["weighted_mean", "cdpa"]
    assert names("fedbcs-cdpa") == ["weighted_mean", "fsr"]
    assert names("fedbcs-cdpa-fsr") == names("fedavg")


@pytest.mark.parametrize(
    ("settings", "depth", "words"),
    [
        ("levels=[0]", 2, "cdpa(levels=[0]): two levels or more are needed; choose among 0 to 1."),
        ("levels=[]", 2, "cdpa(levels=[]): two levels or more are needed"),
        ("levels=[0,9]", 2, "cdpa(levels=[0, 9]): the network has no encoder level 9, its levels are 0 to 1;"),
        ("levels=[0,-1]", 2, "no encoder level -1"),
        ("levels=[0,1,0]", 2, "cdpa(levels=[0, 1, 0]): level 0 is there twice; name each level once."),
        ("tau=0.4", 1, "cdpa: two encoder levels or more are needed and this network has 1; raise network.depth"),
    ],
)
def test_levels_that_the_network_lacks_get_a_sentence(settings: str, depth: int, words: str) -> None:
    with pytest.raises(PolyclinicError) as caught:
        build_workspace(tiny_recipe(f"fedbcs({settings})", network={"depth": depth}), tiny_task())
    assert words in str(caught.value)


def test_papers_network_with_the_released_fusion_has_its_parameters() -> None:
    """7,757,186 of the U-Net and 509,440 of six 1x1 convolutions."""
    task = Task(("background", "nuclei"), 3, 2)
    network = build_network(task, NetworkSettings(width=32, depth=4, norm="batch-nostats", bias=False), seed=0)
    Cdpa(Cdpa.Settings(context="deepest"), Context(task)).install(network)
    assert sum(p.numel() for p in network.extras.parameters()) == 509_440
    assert sum(p.numel() for p in network.parameters()) == 7_757_186 + 509_440
