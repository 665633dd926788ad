from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.objectives.region_contrast import region_means
from polyclinic.components.toolbox.view_contrast import IntensityViewSettings, second_view
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.base import without_statistics
from step_support import component_of, count_encodes, naive_cosine, site_of, step_of
from support import tiny_recipe, tiny_task


@settings(max_examples=20)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=3), st.integers(1, 4))
def test_regions_lie_side_by_side_two_along_an_axis_at_least(size: list[int], region: int) -> None:
    maps = torch.rand(2, 3, *size)
    sides = [min(region, max(1, length // 2)) for length in size]
    starts = product(*(range(0, length - side + 1, side) for length, side in zip(size, sides, strict=True)))
    wanted = [
        maps[(..., *(slice(a, a + side) for a, side in zip(place, sides, strict=True)))].flatten(2).mean(2)
        for place in starts
    ]
    torch.testing.assert_close(region_means(maps, region), torch.stack(wanted, 1))
    assert len(wanted) >= 2 ** sum(length > 1 for length in size)


def naive(first: torch.Tensor, second: torch.Tensor, tau: float) -> torch.Tensor:
    """Equations 1 and 2 of projected regions ``(batch, region, channel)``."""
    images = []
    for f, g in zip(first, second, strict=True):
        for a, b in ((f, g), (g, f)):
            terms = []
            for r, anchor in enumerate(a):
                weights = [torch.exp(naive_cosine(anchor, other) / tau) for other in b]
                terms.append(-torch.log(weights[r] / sum(weights)))
            images.append(sum(terms) / len(terms))
    return sum(images) / len(images)


@pytest.mark.parametrize(("dims", "feature"), [(2, "bottleneck"), (2, "decoder1"), (3, "bottleneck")])
def test_the_term_tells_regions_apart_across_views(dims: int, feature: str) -> None:
    """Value, and the gradient of the projection and the encoder through both views."""
    expression = f"fedlocalcl(gamma=0.7, temperature=0.3, feature={feature}, projection=4, region=1, regions=99)"
    workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
    network = workspace.network
    component, step = component_of(workspace, "region_contrast"), step_of(site_of(workspace, dims), rows=2)
    ours = component.loss(step)["region_contrast"]
    view = second_view(step.images, IntensityViewSettings(), torch.Generator().manual_seed(0))
    with without_statistics(network):
        again = network.features(view)
    maps = [out.encoder[-1] if feature == "bottleneck" else out.decoder[0] for out in (step.output, again)]
    convolution, head = torch.nn.functional.conv3d if dims == 3 else torch.nn.functional.conv2d, network.extras
    kernel = head["region_contrast"].weight.reshape(4, -1, *[1] * dims)
    projected = [convolution(m, kernel, head["region_contrast"].bias).flatten(2).transpose(1, 2) for m in maps]
    wanted = 0.7 * naive(*projected, 0.3)
    torch.testing.assert_close(ours, wanted)
    parameters = [*head.parameters(), *network.encoder.parameters()]
    gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in (ours, wanted)]
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_many_regions_are_drawn_once_in_a_step() -> None:
    workspace = build_workspace(tiny_recipe("fedlocalcl(feature=decoder0, region=1, regions=3)"), tiny_task())
    component, site = component_of(workspace, "region_contrast"), site_of(workspace)
    step = step_of(site)
    first, again = component.loss(step)["region_contrast"], component.loss(step)["region_contrast"]
    assert torch.equal(first, again)
    other = step_of(site)
    other.generator.manual_seed(5)
    assert not torch.equal(component.loss(other)["region_contrast"], first)


def test_one_cell_has_no_regions_and_costs_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe("fedlocalcl"), tiny_task())
    component, step = component_of(workspace, "region_contrast"), step_of(site_of(workspace, size=5))
    assert tuple(step.output.encoder[-1].shape[2:]) == (1, 1)
    encodes = count_encodes(monkeypatch)
    assert component.loss(step) == {}
    step.strong, step.images, step.labels = step.images, step.images[:0], step.labels[:0]
    assert component.loss(step) == {}
    assert not encodes


def test_the_views_of_a_region_are_at_the_same_place() -> None:
    assert "flip" not in IntensityViewSettings.model_fields
    workspace = build_workspace(tiny_recipe("fedlocalcl(gamma=0)"), tiny_task())
    assert not workspace.network.extras
