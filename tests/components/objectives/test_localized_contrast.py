from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.base import Component
from polyclinic.components.objectives.localized_contrast import localized_contrast, patch_similarities
from polyclinic.components.rounds import SiteRound
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from step_support import component_of, count_decodes, count_encodes, same_gradients, shake, site_of, step_of
from support import Keeping, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task

PAIRINGS = ("temporal", "global", "temporal_anchor_pres")
SIMILARITIES = ("cosine", "scaled_dot", "dot")
NAME = "localized_contrast"


def naive(
    pres: torch.Tensor,
    prev: torch.Tensor,
    serv: torch.Tensor,
    patch: int,
    tau: float,
    pairing: str = "temporal",
    similarity: str = "cosine",
) -> torch.Tensor:
    """Equations 9 to 11 as printed, patch by patch, of maps ``(batch, channel, row, column, slice)``."""

    def similar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        dot = (a * b).sum()
        if similarity == "cosine":
            squares = (a * a).sum() * (b * b).sum()
            return dot / squares.sqrt() if squares else dot * 0  # a dead patch has no direction
        return dot / (math.sqrt(pres.shape[1] * patch**2) if similarity == "scaled_dot" else 1)

    terms = []
    for image in range(len(pres)):
        for d in range(pres.shape[4]):
            for i in range(0, pres.shape[2], patch):
                for j in range(0, pres.shape[3], patch):
                    p, q, s = (m[image, :, i : i + patch, j : j + patch, d] for m in (pres, prev, serv))
                    pairs = {
                        "temporal": (similar(q, p), similar(q, s)),
                        "global": (similar(p, s), similar(p, q)),
                        "temporal_anchor_pres": (similar(p, q), similar(p, s)),
                    }
                    positive, negative = (torch.exp(value / tau) for value in pairs[pairing])
                    terms.append(-torch.log(positive / (positive + negative)))
    return sum(terms) / len(terms)


@settings(max_examples=40)
@given(
    st.integers(1, 2), st.integers(1, 3), st.tuples(*[st.integers(1, 5)] * 2, st.integers(1, 2)), st.integers(1, 3),
    st.sampled_from(PAIRINGS), st.sampled_from(SIMILARITIES), st.integers(0, 10**6),
)  # fmt: skip
def test_equations_9_to_11_in_value_and_gradient(
    batch: int, channels: int, size: tuple[int, int, int], patch: int, pairing: str, similarity: str, seed: int
) -> None:
    """Patches that do not divide the map, and patches larger than it, among them."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(3, batch, channels, *size, generator=generator, dtype=torch.float64)
    pres, prev, serv = maps.unbind()
    pres.requires_grad_()
    ours = localized_contrast(pres, prev, serv, patch, 0.5, pairing, similarity)  # type: ignore[arg-type]
    same_gradients(ours, naive(pres, prev, serv, patch, 0.5, pairing, similarity), pres)


def test_an_image_is_a_volume_of_one_slice() -> None:
    maps = torch.randn(3, 2, 3, 4, 5)
    torch.testing.assert_close(localized_contrast(*maps), localized_contrast(*maps[..., None]))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_inner_products_of_thousands_neither_overflow_nor_lose_their_gradient(similarity: str) -> None:
    """Printed, the exponential of 1e3 / 0.5 is infinite in double precision."""
    pres = torch.full((1, 4, 2, 2, 2), 16.0, requires_grad=True)
    serv = 4 * pres.detach()
    assert patch_similarities(pres, serv, 2, "dot").min() > 1e3
    value = localized_contrast(pres, -pres.detach(), serv, 2, 0.5, "temporal_anchor_pres", similarity)  # type: ignore[arg-type]
    value.backward()
    assert value.isfinite()
    assert value > (4 if similarity == "cosine" else 2e3)
    assert pres.grad is not None
    assert pres.grad.isfinite().all()
    if similarity != "cosine":  # whose gradient vanishes between vectors of opposite directions
        assert pres.grad.abs().max() > 1


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_patches_of_zeros_have_cosine_zero_and_no_gradient(pairing: str) -> None:
    pres = torch.zeros(1, 3, 4, 4)
    pres[..., 2:] = 1
    pres.requires_grad_()
    value = localized_contrast(pres, torch.zeros_like(pres), torch.randn(1, 3, 4, 4), pairing=pairing)  # type: ignore[arg-type]
    value.backward()
    assert pres.grad is not None
    assert value.isfinite()
    assert pres.grad.isfinite().all()
    assert pres.grad[..., :2].abs().max() == 0
    nothing = localized_contrast(*torch.zeros(3, 1, 3, 4, 4), pairing=pairing)  # type: ignore[arg-type]
    torch.testing.assert_close(nothing, torch.tensor(math.log(2)))


def test_under_temporal_the_global_model_only_scales_the_pull() -> None:
    """What the docstring says of equations 9 and 10: another received model, the same direction."""
    pres, prev, serv, other = torch.randn(4, 1, 3, 2, 2, dtype=torch.float64)
    pres.requires_grad_()
    pulls = [
        torch.autograd.grad(localized_contrast(pres, prev, model), pres)[0].flatten() for model in (serv, other, -serv)
    ]
    for pull in pulls[1:]:
        torch.testing.assert_close(torch.cosine_similarity(pull, pulls[0], 0), torch.tensor(1.0).double())
        assert (pull - pulls[0]).abs().max() > 1e-4


# ---- the component at a site -----------------------------------------------------------------------------------------


def prepared(chosen: str, dims: int = 2, earlier: bool = True) -> tuple[Component, SiteRound, UNet, UNet]:
    """A component in a site's second round, or first, and independent copies of the previous and received models."""
    workspace = build_workspace(tiny_recipe(f"fsf3a+{NAME}({chosen})"), tiny_task(dims))
    state: dict[str, torch.Tensor] = {}
    previous = copy.deepcopy(workspace.network)
    if earlier:
        component, site = component_of(workspace, NAME), site_of(workspace, dims)
        component.receive(site, {})
        component.after_epoch(step_of(site))
        previous, state = copy.deepcopy(workspace.network), component.state
        shake(workspace.network, 1)
    received = copy.deepcopy(workspace.network)
    component, site = component_of(workspace, NAME, state), site_of(workspace, dims)
    component.receive(site, {})
    shake(workspace.network, 2)
    return component, site, previous, received


@torch.no_grad()
def bottleneck(network: UNet, images: torch.Tensor) -> torch.Tensor:
    return network.eval().encode(images)[-1]


def with_slices(*maps: torch.Tensor) -> list[torch.Tensor]:
    return [m if m.dim() == 5 else m[..., None] for m in maps]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_term_compares_with_the_received_and_the_sites_previous_encoder(dims: int, pairing: str) -> None:
    """Against whole copied networks in eval mode: value, and the gradient of every weight of the network."""
    chosen = f"gamma=0.7, temperature=0.3, patch=1, pairing={pairing}"
    component, site, previous, received = prepared(chosen, dims)
    network, step = site.network, step_of(site)
    buffers = {n: network.state_dict()[n].clone() for n in network.buffer_names()}
    (ours,) = component.loss(step).values()
    maps = with_slices(step.output.encoder[-1], bottleneck(previous, step.images), bottleneck(received, step.images))
    assert all(m.detach().norm(dim=1).gt(1e-3).float().mean() > 0.5 for m in maps), "most patches are alive"
    wanted = 0.7 * naive(*maps, 1, 0.3, pairing)
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    parameters = list(network.encoder.parameters())
    gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in (ours, wanted)]
    assert any(gradient.abs().max() > 1e-4 for gradient in gradients[1])
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
    assert_same(buffers, {n: network.state_dict()[n] for n in buffers})


def test_a_site_without_a_previous_encoder_takes_the_received_one() -> None:
    """In its first round, or when it joins late."""
    component, site, _, received = prepared("patch=1", earlier=False)
    step = step_of(site)
    serv = bottleneck(received, step.images)
    wanted = 0.5 * localized_contrast(step.output.encoder[-1], serv, serv, 1)
    torch.testing.assert_close(component.loss(step)[NAME], wanted)
    for pairing in PAIRINGS[1:]:
        component, site, _, _ = prepared(f"gamma=3, pairing={pairing}", earlier=False)
        term = component.loss(step_of(site))[NAME]
        assert not term.requires_grad
        torch.testing.assert_close(term, torch.tensor(3 * math.log(2)))


def test_passes_two_frozen_encoders_a_step_one_in_the_first_epoch_none_where_both_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chosen, earlier, wanted in (
        ("pairing=temporal", True, 2),
        ("pairing=temporal", False, 1),
        ("pairing=global", True, 2),
        ("pairing=global", False, 0),
    ):
        component, site, _, _ = prepared(chosen, earlier=earlier)
        step = step_of(site)
        with monkeypatch.context() as patch:
            encodes, decodes = count_encodes(patch), count_decodes(patch)
            first, again = component.loss(step)[NAME], component.loss(step)[NAME]
        assert torch.equal(first, again)
        assert len(encodes) == wanted, "a second pass over the step uses the frozen ones again"
        assert all(network is not site.network and not gradients for network, gradients in encodes)
        assert not decodes


def test_the_snapshot_is_renewed_after_every_epoch_and_holds_the_encoder_alone() -> None:
    component, site, _, received = prepared("patch=1")
    step = step_of(site)
    component.after_epoch(step)
    network = site.network
    assert component.state.keys() == {n for n in network.state_dict() if n.startswith("encoder.")}
    snapshot = copy.deepcopy(network)
    shake(network, 4)
    assert_same(component.state, {n: t for n, t in snapshot.state_dict().items() if n in component.state})
    step = step_of(site)
    prev, serv = bottleneck(snapshot, step.images), bottleneck(received, step.images)
    wanted = 0.5 * localized_contrast(step.output.encoder[-1], prev, serv, 1)
    torch.testing.assert_close(component.loss(step)[NAME], wanted)


def test_the_sites_memory_is_the_encoder_that_it_ended_the_round_with(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fsf3a"), sizes={"north": 3}, engine=Keeping)
    for _ in range(2):
        server.round()
        start = f"north/{NAME}/"
        state = {n.removeprefix(start): t for n, t in final_tensors(server).items() if n.startswith(start)}
        update = server.engine.updates[-1]  # type: ignore[attr-defined]
        assert_same(state, {n: t for n, t in update.weights.items() if n.startswith("encoder.")})
        assert not update.shared


def test_half_precision_stays_outside_of_the_comparison() -> None:
    component, site, previous, received = prepared("similarity=dot, patch=1")
    with torch.autocast("cpu", torch.bfloat16):
        step = step_of(site)
        maps = step.output.encoder[-1], bottleneck(previous, step.images), bottleneck(received, step.images)
        ours = component.loss(step)[NAME]
    assert {m.dtype for m in maps} == {torch.bfloat16}
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, 0.5 * localized_contrast(*(m.float() for m in maps), 1, similarity="dot"))


def test_labelled_images_alone_are_compared() -> None:
    component, site, _, _ = prepared("")
    step = step_of(site)
    step.strong, step.images, step.labels = step.images, step.images[:0], step.labels[:0]
    assert component.loss(step) == {}


def test_strength_zero_freezes_and_remembers_nothing() -> None:
    component, site, _, _ = prepared("gamma=0")
    assert component.loss(step_of(site)) == {}
    component.after_epoch(step_of(site))
    assert component.state == {}


@pytest.mark.parametrize(("pairing", "epochs", "warned"), [("global", 1, 1), ("global", 2, 0), ("temporal", 1, 0)])
def test_a_previous_model_that_never_is_gets_a_warning(pairing: str, epochs: int, warned: int) -> None:
    recipe = tiny_recipe(f"fsf3a(pairing={pairing})", training={"rounds": 1, "local_epochs": epochs})
    assert len(component_of(build_workspace(recipe, tiny_task()), NAME).warnings()) == warned


@pytest.mark.parametrize(
    ("pairing", "words"), zip(PAIRINGS, ("prev . serv", "pres . prev", "pres . serv"), strict=True)
)
def test_the_equations_of_a_pairing_are_its_own(pairing: str, words: str) -> None:
    component = component_of(build_workspace(tiny_recipe(f"fsf3a(pairing={pairing})"), tiny_task()), NAME)
    eleven, pair = component.used_equations()
    assert "eq. 11" in eleven
    assert pair.endswith(f"neg = {words}")
