"""What of a method leaves without noise is found, and refused with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from polyclinic.components.updates.privacy import Privacy
from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import Recipe
from support import (
    tiny_recipe,
    tiny_task,
)


def recipe(method: str = "fedavg+privacy", norm: str = "instance", **sections: Any) -> Recipe:
    return tiny_recipe(method, network={"norm": norm}, **sections)


def component(workspace: Workspace) -> Privacy:
    (found,) = [c for c in workspace.fresh_components({}) if isinstance(c, Privacy)]
    return found


def refused(method: str, norm: str = "instance", **sections: Any) -> str:
    with pytest.raises(PolyclinicError) as caught:
        build_workspace(recipe(method, norm, **sections), tiny_task())
    return str(caught.value)


def test_what_would_leave_without_noise_is_refused_with_a_way_out() -> None:
    text = refused("fedavg+privacy", norm="batch")
    assert "running_" in text or "num_batches" in text
    for way in ('policies.buffers = "keep"', "fedbn", "network.norm", "uncovered=allow"):
        assert way in text
    text = refused("fedproto+privacy")
    assert "class_prototypes shares prototypes" in text
    assert "-class_prototypes" in text
    assert "uncovered=allow" in text
    assert "afa" in refused("fedavg+afa+privacy")
    assert "weight_noise shares deviations" in refused("histofl(noise_mode=official)+privacy")
    assert "one place" in refused("central+privacy(uncovered=allow)")
    for method, norm, policy in (
        ("fedavg", "batch", "keep"),
        ("fedbn", "batch", "average"),
        ("fedavg", "group", "average"),
    ):
        build_workspace(recipe(f"{method}+privacy", norm, policies={"buffers": policy}), tiny_task())


def test_buffers_that_a_component_sets_name_it() -> None:
    """What AFA shares is refused first, so that its buffers need a look of their own."""
    workspace = build_workspace(recipe("fedavg+afa+privacy(uncovered=allow)"), tiny_task())
    shares, buffers = component(workspace)._coverage.refusals.values()
    assert "afa shares" in shares
    assert "drop afa" in buffers
