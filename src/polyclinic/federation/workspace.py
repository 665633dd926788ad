"""The workspace of a process: one network and one set of installed components, lent to one site after another."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyclinic.components.base import BuiltMethod, Component, Context
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.machine import prepare_process
from polyclinic.core.memory import enough_memory
from polyclinic.core.seeds import seed_for, seed_torch
from polyclinic.data.augmentation import Augmentation, Intensity
from polyclinic.data.federation import Task
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.evaluation.metric_registry import check_metrics
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import Method
from polyclinic.networks import SegmentationNetwork, build_network, load_weights
from polyclinic.networks.anisotropy import with_settled_network
from polyclinic.networks.registry import too_large
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import with_checked_network


def choose_device(name: str) -> torch.device:
    """The device of a recipe; ``auto`` takes a GPU when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.empty(0, device=name).device
        float(torch.zeros(1, device=device).sum())  # a device that holds no numbers cannot train
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise PolyclinicError(
            f"engine.device = '{name}' cannot be used here ({error}); try 'cpu' or 'auto'."
        ) from error


def independent(tensor: Tensor) -> Tensor:
    """A tensor on the CPU with contiguous storage of its own, in one copy, wherever it comes from."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


@dataclass
class Workspace:
    """Everything that sites of one process share; nothing of a site stays here between two rounds."""

    recipe: Recipe
    method: Method
    task: Task
    device: torch.device
    network: SegmentationNetwork
    components: list[Component]
    augmentation: Augmentation
    strong: Intensity
    initial_kept: Tensors = field(default_factory=dict)
    initial_exchanged: Tensors = field(default_factory=dict)
    """The weights that every training starts from, whatever the network was used for before."""
    exchanged: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    @property
    def learns_unlabelled(self) -> bool:
        """Whether unlabelled images are drawn beside the labelled ones."""
        return any(component.uses_unlabelled for component in self.components)

    def fresh_components(self, state: Mapping[str, Tensors]) -> list[Component]:
        """Components for one site and one round. Copies, so that nothing leaks from one site to the next."""
        fresh = []
        for template in self.components:
            component = copy.copy(template)
            component.state, component.ledger = dict(state.get(component.name, {})), {}
            fresh.append(component)
        return fresh

    def load(self, *weights: Mapping[str, Tensor]) -> None:
        """Fill the network: kept weights at their initial values, then each mapping over what came before."""
        merged: dict[str, Tensor] = dict(self.initial_kept)
        for mapping in weights:
            merged.update(mapping)
        load_weights(self.network, merged)

    def predict(self, images: Tensor) -> Tensor:
        """Class probabilities ``(batch, class, *spatial)`` of images ``(batch, channel, *spatial)``, by the recipe."""
        settings, network = self.recipe.evaluation, self.network
        window = self.recipe.data.patch, settings.overlap, settings.batch_size
        return predict_probabilities(network, images.to(self.device), *window, multiple=network.multiples)

    def exchanged_weights(self) -> Tensors:
        """A copy of the weights that travel."""
        return self._copies(self.exchanged)

    def kept_weights(self) -> Tensors:
        """A copy of the weights that stay at the site."""
        return self._copies(self.kept)

    def _copies(self, names: frozenset[str]) -> Tensors:
        weights = self.network.state_dict() if names else {}
        return {name: independent(tensor) for name, tensor in weights.items() if name in names}

    def declared(self) -> dict[str, tuple[Shared, ...]]:
        """What each component lets out of a site, by component."""
        return {c.name: c.leaves(self.network) for c in self.components}

    def returned(self) -> dict[str, tuple[Shared, ...]]:
        """What each component takes from the server beside the weights, by component."""
        return {c.name: c.returns(self.network) for c in self.components}

    def warnings(self) -> list[str]:
        """What makes little sense: each component's settings, and components that do not fit each other."""
        sentences = [warning for component in self.components for warning in component.warnings()]
        if self.recipe.network.name == "pretrained" and self.recipe.data.value_range is None:
            sentences.append(
                f"network.name = pretrained expects intensities from 0 to 1, and data.intensity is "
                f"{self.recipe.data.intensity}; use full-range, zero-one or percentile."
            )
        if self.recipe.network.weights_file == "random":
            sentences.append("network.weights = random: the frozen encoder is untrained; give its safetensors file.")
        if self.learns_unlabelled and self.recipe.network.cancels_contrast and self.recipe.strong.affine_changes:
            keys = " and ".join(f"strong.{key}" for key in self.recipe.strong.affine_changes)
            sentences.append(
                f"{keys} hardly change what the network sees: its instance norm takes out a factor and a shift of all "
                "intensities; set strong.clip = true, or use strong.gamma, strong.blur and strong.noise."
            )
        declared = self.declared()
        for component in self.components:
            served = {name for name in self.network.state_dict() if component.sets(name)}
            if self.method.pooled:
                if served or declared[component.name]:
                    sentences.append(
                        f"{component.name}: finds no other site to exchange with, because all images are in one place."
                    )
            elif served and served <= self.kept:
                sentences.append(
                    f"{component.name}: what the server sets never reaches a site, because this method exchanges no "
                    "weights; every site goes on with its own."
                )
            elif not self.exchanged and any(tensor.prototypes for tensor in declared[component.name]):
                sentences.append(
                    f"{component.name}: prototypes leave the sites although no weights are exchanged; those of models "
                    "that drift apart may not fit each other."
                )
        return sentences


def _lay_out(network: SegmentationNetwork, device: torch.device, channels_last: bool) -> None:
    """Move a network to a device; convolutions follow the layout of their weights, whatever that of their input."""
    layout = torch.channels_last if network.spatial_dims == 2 else torch.channels_last_3d
    network.to(device)
    if channels_last:
        network.to(memory_format=layout)  # type: ignore[call-overload]


def build_workspace(
    recipe: Recipe, task: Task, method: Method | None = None, network: SegmentationNetwork | None = None
) -> Workspace:
    """Build network and components of a recipe; the same at every site and at the server.

    ``method`` and ``network`` are those of the recipe where the caller has them already. The network must be as
    ``build_network`` gave it: components are installed into it.
    """
    prepare_process(recipe.engine.threads)
    recipe = with_settled_network(with_checked_network(recipe))
    check_metrics(recipe.evaluation)
    method = method or parse_method(recipe.method)
    device = choose_device(recipe.engine.device)
    network = build_network(task, recipe.network, recipe.seed) if network is None else network
    size = recipe.data.patch or (recipe.data.size if recipe.data.size != "auto" else None)
    unseen_sites = recipe.protocol.kind == "leave-one-site-out"
    fixed = recipe.data.patch is None and not (recipe.strong.geometry and recipe.augmentation.moves)
    context = Context(
        task, recipe.training, recipe.policies, recipe.seed, unseen_sites, size, recipe.data.value_range,
        recipe.data.keeps_style, fixed, recipe.network.cancels_contrast,
    )  # fmt: skip
    components = method.build(context)
    for hook in ("objective", "make_optimizer"):
        _require_one(hook, components)
    with torch.random.fork_rng(devices=[]):
        for number, component in enumerate(components):
            seed_torch(seed_for(recipe.seed, "install", number, component.name))
            component.install(network)
    with enough_memory(too_large(recipe.network, f"engine.device = '{device}'")):
        _lay_out(network, device, recipe.engine.channels_last)
    views = Augmentation(recipe.augmentation), Intensity(recipe.strong)
    workspace = Workspace(recipe, method, task, device, network, components, *views)
    workspace.kept, workspace.exchanged = _kept_and_exchanged(workspace)
    for component in components:
        component.exchanged = workspace.exchanged
    workspace.initial_kept, workspace.initial_exchanged = workspace.kept_weights(), workspace.exchanged_weights()
    built = BuiltMethod(method.name, method.pooled, network, components, workspace.exchanged, workspace.declared())
    for component in components:
        component.check(built)
    return workspace


def _require_one(hook: str, components: list[Component]) -> None:
    """Two components that replace the same thing would silently drop one of the two ideas."""
    replacing = [c.name for c in components if getattr(type(c), hook) is not getattr(Component, hook)]
    if len(replacing) > 1:
        what = "supervised loss" if hook == "objective" else "optimiser"
        raise PolyclinicError(f"method: {' and '.join(replacing)} each replace the {what}; drop one of them.")


def _kept_and_exchanged(workspace: Workspace) -> tuple[frozenset[str], frozenset[str]]:
    """Names that stay at a site, and names that travel; frozen ones do neither."""
    network, policy = workspace.network, workspace.recipe.policies.buffers
    buffers, frozen = network.buffer_names(), network.frozen()
    kept: set[str] = set()
    exchanged: set[str] = set()
    for name in network.state_dict():
        if name in frozen:
            continue
        stays = any(component.keeps(name) for component in workspace.components)
        served = any(component.sets(name) for component in workspace.components)
        (kept if stays or (policy == "keep" and name in buffers and not served) else exchanged).add(name)
    return frozenset(kept), frozenset(exchanged)


def describe_components(workspace: Workspace) -> list[dict[str, Any]]:
    """Plain data about the components and their settings, for the run record."""
    return [{"component": c.name, "level": c.level, "settings": c.settings.model_dump()} for c in workspace.components]
