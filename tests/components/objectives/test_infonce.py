from __future__ import annotations

import torch

from polyclinic.components.toolbox.contrast import info_nce
from polyclinic.components.toolbox.view_contrast import ViewSettings, second_view
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.base import without_statistics
from step_support import component_of, site_of, step_of
from support import tiny_recipe, tiny_task


def test_the_term_is_one_way_between_the_steps_pass_and_a_second_view() -> None:
    """Value, and the gradient of every weight through both views."""
    for dims in (2, 3):
        expression = "fedinfonce(gamma=0.7, temperature=0.3, flip=0.4)"
        workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
        component, step = component_of(workspace, "infonce"), step_of(site_of(workspace, dims))
        (ours,) = component.loss(step).values()
        view = second_view(step.images, ViewSettings(flip=0.4), torch.Generator().manual_seed(0))
        with without_statistics(step.network):
            second = step.network.encode(view)[-1]
        pooled = [maps.flatten(2).mean(2) for maps in (step.output.encoder[-1], second)]
        wanted = 0.7 * info_nce(*pooled, 0.3)
        torch.testing.assert_close(ours, wanted)
        assert abs(ours - 0.7 * info_nce(*pooled[::-1], 0.3)) > 1e-6
        parameters = list(workspace.network.encoder.parameters())
        gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in (ours, wanted)]
        assert any(gradient.any() for gradient in gradients[0])
        for own, other in zip(*gradients, strict=True):
            torch.testing.assert_close(own, other)


def test_nothing_is_installed_and_nothing_kept() -> None:
    workspace = build_workspace(tiny_recipe("fedinfonce"), tiny_task())
    assert not workspace.network.extras
    component, step = component_of(workspace, "infonce"), step_of(site_of(workspace))
    component.loss(step)
    component.after_step(step)
    component.after_epoch(step)
    assert not component.state
