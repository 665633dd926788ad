from __future__ import annotations

import pytest
import torch

from polyclinic.components.toolbox.view_contrast import (
    IntensityViewSettings,
    ViewContrast,
    ViewSettings,
    map_of_second_view,
    second_view,
)
from polyclinic.federation.workspace import build_workspace
from step_support import component_of, count_decodes, count_encodes, shake, site_of, step_of
from support import assert_same, tiny_recipe, tiny_task


def test_a_view_that_only_mirrors_is_the_image_mirrored() -> None:
    images = torch.rand(1, 2, 3, 4, 5)
    still = {"scale": 0, "shift": 0, "noise": 0}
    view = second_view(images, ViewSettings(flip=1, **still), torch.Generator())
    assert torch.equal(view, images.flip(2, 3, 4))
    assert torch.equal(second_view(images, IntensityViewSettings(**still), torch.Generator()), images)


def test_intensities_are_scaled_shifted_and_noisy_as_the_settings_say() -> None:
    images, generator = torch.rand(400, 1, 6, 6), torch.Generator().manual_seed(0)
    deviation = images.std((1, 2, 3), correction=0)
    scaled = second_view(images, IntensityViewSettings(scale=0.25, shift=0, noise=0), generator)
    factors = scaled.std((1, 2, 3), correction=0) / deviation
    assert 0.75 <= factors.min() < 0.8
    assert 1.2 < factors.max() <= 1.2501
    shifted = second_view(images, IntensityViewSettings(scale=0, shift=0.1, noise=0), generator)
    assert 0.09 < ((shifted - images).mean((1, 2, 3)) / deviation).std() < 0.11
    noisy = second_view(images, IntensityViewSettings(scale=0, shift=0, noise=0.1), generator)
    assert 0.09 < ((noisy - images).std((1, 2, 3)) / deviation).mean() < 0.11


@pytest.mark.parametrize("dims", [2, 3])
def test_one_encoder_pass_with_gradients_and_no_trace_in_running_statistics(
    dims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = build_workspace(tiny_recipe("fedinfonce"), tiny_task(dims))
    component, step = component_of(workspace, "infonce"), step_of(site_of(workspace, dims))
    network = workspace.network
    buffers = {name: network.state_dict()[name].clone() for name in network.buffer_names()}
    encodes, decodes = count_encodes(monkeypatch), count_decodes(monkeypatch)
    first, again = component.loss(step)["infonce"], component.loss(step)["infonce"]
    assert encodes == [(network, True)] * 2
    assert not decodes
    assert torch.equal(first, again), "one view serves all passes of a step"
    assert_same(buffers, {name: network.state_dict()[name] for name in buffers})
    shake(network, 3)
    assert not torch.equal(component.loss(step)["infonce"], first), "the pass is that of the weights at the time"


def test_a_decoder_runs_for_its_own_taps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe("fedlocalcl"), tiny_task())
    component, step = component_of(workspace, "region_contrast"), step_of(site_of(workspace))
    decodes = count_decodes(monkeypatch)
    assert map_of_second_view(step, component, "encoder0").shape[2:] == (8, 8)
    assert not decodes
    assert map_of_second_view(step, component, "decoder1").shape[2:] == (4, 4)
    assert len(decodes) == 1


@pytest.mark.parametrize(("method", "name"), [("fedinfonce", "infonce"), ("fedsimclr", "simclr")])
def test_nothing_to_tell_apart_costs_no_pass(method: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe(method, training={"batch_size": 1}), tiny_task())
    component, step = component_of(workspace, name), step_of(site_of(workspace), rows=1)
    encodes = count_encodes(monkeypatch)
    assert component.loss(step) == {}
    step.strong, step.images, step.labels = step.images, step.images[:0], step.labels[:0]
    assert component.loss(step) == {}
    assert not encodes
    assert len(component.warnings()) == 1


def test_unlabelled_images_behind_the_labelled_ones_are_not_compared() -> None:
    workspace = build_workspace(tiny_recipe("fedsimclr", network={"norm": "instance"}), tiny_task())
    component, site = component_of(workspace, "simclr"), site_of(workspace)
    plain, step = component.loss(step_of(site, rows=2)), step_of(site, rows=2)
    step.strong = site.data.images.batch(torch.tensor([2]))[0]
    step.output = site.network.features(step.inputs)
    torch.testing.assert_close(component.loss(step), plain)


def test_half_precision_stays_outside_of_the_comparison() -> None:
    class Listening(ViewContrast):
        name = "infonce"
        Settings = ViewSettings

        def compare(self, step, first, second):  # type: ignore[no-untyped-def]
            assert not torch.is_autocast_enabled("cpu")
            assert first.dtype == second.dtype == torch.float32
            return (first @ second.T).sum()

    workspace = build_workspace(tiny_recipe("fedinfonce"), tiny_task())
    original = component_of(workspace, "infonce")
    component = Listening(original.settings, original.context)
    with torch.autocast("cpu", torch.bfloat16):
        step = step_of(site_of(workspace))
        assert step.output.encoder[-1].dtype == torch.bfloat16
        assert component.loss(step)["infonce"].dtype == torch.float32
