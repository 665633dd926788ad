"""How alike the sites' models are, stage by stage, and what follows for their weights in a mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from polyclinic.evaluation.inference import evaluating
from polyclinic.exchange.messages import Tensors, tensor_bytes
from polyclinic.networks.base import SegmentationNetwork

Reading = Literal["row", "global"]
Similarity = Literal["flat", "sample"]


def stage_names(network: SegmentationNetwork) -> list[str]:
    """Stages with weights that are trained, in forward order; an error if the stages do not cover the network."""
    stages, names = network.stages(), list(network.state_dict())
    if sorted(names) != sorted(name for members in stages.values() for name in members):
        raise ValueError("stages() of this network must hold every weight exactly once")
    frozen = network.frozen()
    trained = [stage for stage, members in stages.items() if set(members) - frozen]
    unknown = [stage for stage in trained if stage != "head" and stage not in network.outlets()]
    if unknown:
        raise ValueError(f"the stage '{unknown[0]}' of this network has no outlet and is not the head")
    return trained


@torch.no_grad()
def stage_outputs(network: SegmentationNetwork, probes: Tensor, stages: list[str]) -> Tensors:
    """Outputs of the stages in eval mode, ``(probes, values)`` each, for probes ``(probes, channel, *spatial)``.

    Probes go through one by one: a batch norm without statistics then gives the same for any number of them. A stage is
    read before a module at its end that makes all sites' features alike (``aligns_sites``), which would hide how alike
    they are.
    """
    outputs: dict[str, list[Tensor]] = {stage: [] for stage in ("head", *stages)}

    def keep(stage: str, before: bool) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001
            outputs[stage].append((inputs[0] if before else output).float().flatten(1))

        return hook

    outlets, hooks = network.outlets(), []
    for stage in (stage for stage in stages if stage != "head"):
        aligning = [module for module in outlets[stage].children() if getattr(module, "aligns_sites", False)]
        outlet = aligning[0] if aligning else outlets[stage]
        hooks.append(outlet.register_forward_hook(keep(stage, before=bool(aligning))))
    try:
        with evaluating(network):
            for probe in torch.split(probes, 1):
                outputs["head"].append(network(probe).float().flatten(1))
    finally:
        for hook in hooks:
            hook.remove()
    return {stage: torch.cat(outputs[stage]) for stage in stages}


def products(first: Tensors, second: Tensors) -> Tensor:
    """Inner products of two models' outputs, ``(stage, probe)``, as doubles on the CPU."""
    # One dot product at a time: batched ones lose three digits over millions of values.
    rows = [torch.stack([torch.dot(a, b) for a, b in zip(first[s], second[s], strict=True)]) for s in first]
    return torch.stack(rows).cpu().double()


def pairwise_products(outputs: Callable[[int], Tensors], count: int, max_bytes: int) -> dict[tuple[int, int], Tensor]:
    """Inner products ``(stage, probe)`` of the outputs of all pairs ``m <= j`` of ``count`` models.

    Outputs of at most ``max_bytes`` are held beside those of the model at work; beyond that models run again instead.
    """
    by_pair: dict[tuple[int, int], Tensor] = {}
    first = 0
    while first < count:
        held_outputs: list[Tensors] = []
        for other in range(first, count):
            maps = outputs(other)
            for number, earlier in enumerate(held_outputs):
                by_pair[first + number, other] = products(earlier, maps)
            if (other, other) not in by_pair:
                by_pair[other, other] = products(maps, maps)
            fits = not held_outputs or (len(held_outputs) + 1) * tensor_bytes(maps) <= max_bytes
            if fits and other == first + len(held_outputs):
                held_outputs.append(maps)
        first += len(held_outputs)
    return by_pair


def cosine(product: Tensor, left: Tensor, right: Tensor, how: Similarity) -> Tensor:
    """Cosines ``(stage,)``, at least 0, from products and the two squared norms, ``(stage, probe)`` each.

    ``flat`` takes all probes as one vector, ``sample`` the mean of each probe's cosine. Outputs of zeros are alike to
    nothing, and so are outputs that overflow.
    """
    if how == "flat":
        product, left, right = (values.sum(1, keepdim=True) for values in (product, left, right))
    norms = (left.sqrt() * right.sqrt()).clamp_min(torch.finfo(torch.float64).tiny)
    return (product / norms).nan_to_num(0.0, 0.0, 0.0).mean(1).clamp_min(0)


def stage_weights(similarity: Tensor, base: Tensor, reading: Reading) -> Tensor:
    """Weights ``(stage, site)`` of eq. 13, each stage's sum is 1.

    ``similarity`` ``(stage, site, site)`` is at least 0, its diagonal is not used; ``base`` ``(site,)`` sums to 1.
    """
    sites = len(base)
    if sites == 1:
        return torch.ones(len(similarity), 1, dtype=torch.float64)
    others = 1 - torch.eye(sites, dtype=torch.float64)
    pairs = similarity * others
    axes = (2,) if reading == "row" else (1, 2)
    total, evenly = pairs.sum(axes, keepdim=True), others / others.sum([axis - 1 for axis in axes], keepdim=True)
    shares = torch.where(total > 0, pairs / total, evenly).sum(1)
    return (base + (shares / sites if reading == "row" else shares)) / 2
