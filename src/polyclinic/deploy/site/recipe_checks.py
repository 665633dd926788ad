"""What a site refuses of a recipe before it opens a file of its own: plugins, method, what leaves, sizes, work."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from polyclinic.components.base import Context
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.deploy.site.work_limits import refusal_of_memory, refusal_of_sizes
from polyclinic.exchange.declarations import Shared
from polyclinic.federation.site_policy import Policy, refusal_of_method, refusal_of_plugins
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import Method, load_plugins
from polyclinic.networks import build_network
from polyclinic.networks.anisotropy import with_settled_network
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import with_checked_network


@dataclass(frozen=True)
class Outline:
    """A method's network and components without their numbers: bytes of the weights, and what leaves by component."""

    weight_bytes: int
    declared: dict[str, tuple[Shared, ...]]


def refusal_before_data(policy: Policy, recipe: Recipe) -> str | None:
    """Why a recipe may not run here, as far as it can be told without the site's data, or ``None``."""
    reason = refusal_of_plugins(policy, recipe.plugins) or refusal_of_sizes(policy, recipe)
    if reason is not None:
        return reason
    load_plugins(recipe.plugins)
    recipe = with_checked_network(recipe)
    method = parse_method(recipe.method)
    reason = refusal_of_method(policy, method.name, {})
    if reason is not None:
        return reason
    outlined = outline(recipe, method)
    if outlined is None:
        return None
    return refusal_of_method(policy, method.name, outlined.declared) or refusal_of_memory(
        policy, recipe, outlined.weight_bytes
    )


def outline(recipe: Recipe, method: Method) -> Outline | None:
    """Build a recipe's network without memory, for two classes and one channel, and ask what would leave.

    ``None`` where that cannot be done, as with a plugin's network that computes while it is built: the same is asked
    again when the network is there.
    """
    recipe = with_settled_network(recipe)
    size = recipe.data.patch or (recipe.data.size if isinstance(recipe.data.size, tuple) else (64, 64))
    task = Task(("background", "foreground"), 1, len(size))
    if recipe.network.weights_file is not None:
        recipe = with_changes(recipe, {"network.weights": "random"})
    context = Context(
        task, recipe.training, recipe.policies, recipe.seed, recipe.protocol.kind == "leave-one-site-out", size,
        recipe.data.value_range, recipe.data.keeps_style,
    )  # fmt: skip
    try:
        with torch.device("meta"):
            network = build_network(task, recipe.network, recipe.seed)
            components = method.build(context)
            for component in components:
                component.install(network)
            declared = {component.name: component.leaves(network) for component in components}
    except PolyclinicError:
        raise
    except Exception:
        return None
    tensors = network.state_dict().values()
    return Outline(sum(prod(tensor.shape) * tensor.element_size() for tensor in tensors), declared)
