from __future__ import annotations

import copy

import pytest
import torch

from mixed_sites import mixed_site, shake, site_round
from polyclinic.components.rounds import SiteRound
from polyclinic.components.toolbox.unlabelled import teachers
from polyclinic.components.toolbox.unlabelled.teachers import (
    StaticTeacher,
    careful_probabilities,
    drop_channels,
    follow,
    probabilities,
)
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks.unet import UNet
from support import assert_same, tiny_recipe, tiny_task


def workspace_of(method: str = "fgasl", **sections: dict[str, object]) -> Workspace:
    workspace = build_workspace(tiny_recipe(method, **sections), tiny_task())
    shake(workspace.network, 1)
    return workspace


def site_of(workspace: Workspace, labelled: int = 3, unlabelled: int = 4) -> SiteRound:
    return site_round(workspace, mixed_site("north", labelled, unlabelled))


def images_of(site: SiteRound, indices: torch.Tensor) -> torch.Tensor:
    return site.data.images.batch(indices)[0]


# ---- the moving average ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 0.6, 0.99, 0.999])
def test_the_average_is_exact_over_many_steps_and_buffers_are_copied(keep: float) -> None:
    student = workspace_of().network
    teacher = copy.deepcopy(student)
    naive = {n: p.detach().double() for n, p in teacher.named_parameters()}
    for seed in range(5):
        shake(student, seed)
        for norm in (m for m in student.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.num_batches_tracked += 3
        follow(teacher, student, keep)
        for name, parameter in student.named_parameters():
            naive[name] = keep * naive[name] + (1 - keep) * parameter.detach().double()
    for name, parameter in teacher.named_parameters():
        torch.testing.assert_close(parameter.double(), naive[name], rtol=1e-5, atol=1e-6)
    buffers = student.buffer_names()
    assert any(n.endswith("num_batches_tracked") for n in buffers)
    assert_same(*({n: t for n, t in one.state_dict().items() if n in buffers} for one in (teacher, student)))
    assert all(p.requires_grad and p.grad is None for p in student.parameters())


def test_what_is_not_trained_is_not_averaged() -> None:
    student = workspace_of().network
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(not name.startswith("encoder"))
    teacher = copy.deepcopy(student)
    before = {n: t.clone() for n, t in teacher.state_dict().items()}
    shake(student, 5)
    follow(teacher, student, 0.5)
    for name, parameter in teacher.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("encoder")


def test_a_frozen_encoder_is_shared_and_stays() -> None:
    workspace = workspace_of(network={"name": "pretrained", "model": "test_resnet", "weights": "random", "width": 2})
    frozen = workspace.network.frozen()
    assert frozen
    teacher = site_of(workspace).frozen()
    before = {n: t.clone() for n, t in teacher.state_dict().items()}
    with torch.no_grad():
        for parameter in workspace.network.parameters():
            if parameter.requires_grad:
                parameter.add_(1)
    follow(teacher, workspace.network, 0.75)
    own = workspace.network.state_dict()
    for name, tensor in teacher.state_dict().items():
        if name in frozen:
            assert tensor.data_ptr() == own[name].data_ptr()
            assert torch.equal(tensor, before[name])
    trained = [n for n, p in workspace.network.named_parameters() if p.requires_grad]
    for name in trained:
        torch.testing.assert_close(teacher.state_dict()[name], before[name] + 0.25)


# ---- the received model ----------------------------------------------------------------------------------------------


class Counting:
    """Counts the images that each network sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[torch.Tensor] = []
        encode = UNet.encode

        def counted(network: UNet, images: torch.Tensor) -> list[torch.Tensor]:
            assert not network.training
            self.seen.append(images.clone())
            return encode(network, images)

        monkeypatch.setattr(UNet, "encode", counted)


def test_images_as_they_are_are_looked_at_once_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(workspace_of())
    expected = {i: probabilities(site.frozen(), images_of(site, torch.tensor([i]))) for i in range(7)}
    shake(site.network, 9)  # training goes on; the teacher stays at what was received
    counting = Counting(monkeypatch)
    teacher = StaticTeacher(site)
    for indices in ([4, 2], [2, 4], [5, 4, 5, 5], [0, 1, 2, 3, 4, 5, 6]):
        found = teacher.known(torch.tensor(indices), images_of(site, torch.tensor(indices)))
        for row, index in enumerate(indices):
            torch.testing.assert_close(found[row : row + 1], expected[index], rtol=1e-4, atol=1e-6)
    assert [len(images) for images in counting.seen] == [2, 1, 4]
    other = StaticTeacher(site)  # another component of the same round
    everything = torch.arange(7)
    again = other.known(everything, images_of(site, everything))
    assert torch.equal(again, found)
    assert len(counting.seen) == 3
    assert "network" not in vars(other)  # and no copy of the network was made for it


def test_a_new_round_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = workspace_of()
    first, second = site_of(workspace), site_of(workspace)
    counting = Counting(monkeypatch)
    for site in (first, second):
        StaticTeacher(site).known(torch.tensor([1]), images_of(site, torch.tensor([1])))
    assert len(counting.seen) == 2


def test_what_does_not_fit_is_computed_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(workspace_of())
    indices = torch.tensor([3, 1])
    kept = StaticTeacher(site).known(indices, images_of(site, indices))
    fresh = site_of(build_workspace(tiny_recipe("fgasl"), tiny_task()))
    fresh.received = site.received
    size = 7 * 3 * 8 * 8 * 4
    for room, passes in ((size, 1), (size - 1, 2)):
        monkeypatch.setattr(teachers, "_MAX_BYTES_HELD", room)
        fresh.static_outputs = None
        teacher = StaticTeacher(fresh)
        with pytest.MonkeyPatch.context() as patch:
            counting = Counting(patch)
            for _ in range(2):
                assert torch.equal(teacher.known(indices, images_of(fresh, indices)), kept)
        assert len(counting.seen) == passes
        assert (fresh.static_outputs is not None) == (passes == 1)


def test_what_is_remembered_is_in_full_precision_inside_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(workspace_of())
    indices = torch.tensor([0, 5])
    images = images_of(site, indices)
    precise: list[bool] = []

    def forward(_: UNet, x: torch.Tensor) -> torch.Tensor:
        precise.append(not torch.is_autocast_enabled("cpu"))
        return x.repeat(1, 2, 1, 1)[:, :3]

    monkeypatch.setattr(UNet, "forward", forward)
    with torch.autocast("cpu", torch.bfloat16):
        teacher = StaticTeacher(site)
        found, rough = teacher.known(indices, images), teacher(images.bfloat16())
    assert precise == [True, False]
    assert found.dtype == rough.dtype == torch.float32


def test_images_larger_than_the_window_go_through_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    network = workspace_of(network={"norm": "instance"}).network.train()
    images = torch.rand(2, 2, 8, 8)
    counting = Counting(monkeypatch)
    found = careful_probabilities(network, images, (4, 8))
    assert network.training
    assert {tuple(seen.shape[2:]) for seen in counting.seen} == {(4, 8)}
    assert sum(len(seen) for seen in counting.seen) == 4
    network.eval()
    pieces = torch.cat([probabilities(network, part) for part in images.split(4, 2)], 2)
    torch.testing.assert_close(found, pieces, rtol=1e-4, atol=1e-6)
    whole = careful_probabilities(network, images, (8, 8))
    assert torch.equal(whole, probabilities(network, images))
    assert torch.equal(whole, careful_probabilities(network, images, None))


# ---- dropped channels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [(4, 5), (2, 3, 4)])
def test_whole_channels_are_dropped_and_the_others_scaled(spatial: tuple[int, ...]) -> None:
    pyramid = [torch.rand(3, 200, *spatial) + 1, torch.rand(3, 200, *spatial) + 1]
    found = drop_channels(pyramid, 0.3, torch.Generator().manual_seed(0))
    kept = []
    for before, after in zip(pyramid, found, strict=True):
        inside = after.flatten(2).abs().sum(2) > 0
        kept.append(inside)
        torch.testing.assert_close(after, before / 0.7 * inside.reshape(3, 200, *[1] * len(spatial)))
        assert inside.float().mean().item() == pytest.approx(0.7, abs=0.06)
        assert not torch.equal(inside[0], inside[1])  # drawn for each image
    assert not torch.equal(*kept)  # and for each level
    assert all(map(torch.equal, drop_channels(pyramid, 0.0, torch.Generator()), pyramid))
    half = drop_channels([pyramid[0].bfloat16()], 0.3, torch.Generator().manual_seed(0))[0]
    assert half.dtype == torch.bfloat16
