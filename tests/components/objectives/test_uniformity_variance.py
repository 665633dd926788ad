from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.base import Component
from polyclinic.components.objectives.uniformity_variance import class_shares, uniformity_term, variance_term
from polyclinic.components.step import Step
from polyclinic.components.toolbox.pixels import draw_distinct
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.base import Features
from support import assert_same, final_tensors, tiny_recipe, tiny_server, tiny_site, tiny_task


def deviation(values: list[torch.Tensor]) -> torch.Tensor:
    """Unbiased."""
    mean = sum(values) / len(values)
    return (sum((v - mean) ** 2 for v in values) / (len(values) - 1)).sqrt()


def naive_variance(logits: torch.Tensor, class_shares: list[float] | None = None) -> torch.Tensor:
    count, classes = logits.shape
    identity = torch.eye(classes, dtype=logits.dtype)
    balanced = sum(deviation([identity[r, c] for r in range(classes)]) for c in range(classes)) / classes
    total = logits.new_zeros(())
    for c in range(classes):
        balanced = balanced if class_shares is None else math.sqrt(class_shares[c] * (1 - class_shares[c]))
        shares = [torch.exp(logits[i, c]) / sum(torch.exp(logits[i, k]) for k in range(classes)) for i in range(count)]
        missing = balanced - deviation(shares)
        total = total + (missing if missing > 0 else 0 * missing)
    return total / classes


def naive_uniformity(vectors: torch.Tensor) -> torch.Tensor:
    squared = [sum((a - b) ** 2 for a, b in zip(v, w, strict=True)) for v, w in combinations(vectors, 2)]
    apart = sorted((d for d in squared if d > 0), key=float)
    if not apart:
        return vectors.new_zeros(())
    # Of equal distances each has its share of the median's gradient.
    tied = [d for d in apart if d == apart[(len(apart) - 1) // 2]]
    median = sum(tied) / len(tied)
    return sum(torch.exp(-d / median) for d in squared) / len(squared)


def gradients(*terms: torch.Tensor, of: torch.Tensor) -> list[torch.Tensor]:
    return [torch.autograd.grad(term, of, retain_graph=True)[0] for term in terms]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(2, 5), st.sampled_from([0.1, 1.0, 20.0]), st.integers(0, 10**6))
def test_variance_is_the_hinge_of_the_deviations(count: int, classes: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)).requires_grad_()
    ours, wanted = variance_term(logits), naive_variance(logits)
    torch.testing.assert_close(ours, wanted)
    own, naive = gradients(ours, wanted, of=logits)
    assert own.isfinite().all()
    # Equal shares, as saturated logits give, have no naive gradient: that of a root at 0.
    if naive.isfinite().all():
        torch.testing.assert_close(own, naive)


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_a_balanced_batch_of_certain_predictions_needs_no_more_variance(classes: int) -> None:
    certain = 100 * torch.eye(classes)
    torch.testing.assert_close(variance_term(certain), torch.tensor(0.0), atol=1e-6, rtol=0)
    one_class = certain[:1].expand(classes, -1)
    torch.testing.assert_close(variance_term(one_class), torch.tensor(classes**-0.5))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(1, 4), st.integers(0, 3), st.integers(0, 10**6))
def test_uniformity_is_the_mean_kernel_of_all_pairs(count: int, width: int, repeated: int, seed: int) -> None:
    """Some vectors are there twice: their pairs count in the mean and not in the median."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, width, generator=generator, dtype=torch.float64)
    vectors = torch.cat([vectors, vectors[:repeated]]).requires_grad_()
    ours, wanted = uniformity_term(vectors), naive_uniformity(vectors)
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(*gradients(ours, wanted, of=vectors))


def test_uniformity_does_not_depend_on_the_scale() -> None:
    vectors = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(uniformity_term(vectors), uniformity_term(1e-3 * vectors))
    torch.testing.assert_close(uniformity_term(vectors), uniformity_term(1e3 * vectors))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4])
def test_equal_vectors_give_zero_and_no_gradient(value: float) -> None:
    vectors = torch.full((9, 5), value, requires_grad=True)
    term = uniformity_term(vectors)
    (gradient,) = gradients(term, of=vectors)
    assert term == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_equal_logits_give_the_whole_hinge_and_a_finite_gradient() -> None:
    logits = torch.ones(9, 3, requires_grad=True)
    term = variance_term(logits)
    torch.testing.assert_close(term.detach(), torch.tensor(3**-0.5))
    assert gradients(term, of=logits)[0].isfinite().all()


def test_rounding_in_a_flat_background_is_no_distance() -> None:
    """Most pairs differ by rounding alone; a bandwidth of that size would make the gradient explode."""
    generator = torch.Generator().manual_seed(0)
    background = 3 + 1e-6 * torch.randn(40, 8, generator=generator)
    vectors = torch.cat([background, torch.randn(8, 8, generator=generator)]).requires_grad_()
    term = uniformity_term(vectors)
    flat = torch.cat([torch.full((40, 8), 3.0), vectors.detach()[40:]])
    torch.testing.assert_close(term.detach(), naive_uniformity(flat.double()).float(), rtol=1e-4, atol=0)
    assert gradients(term, of=vectors)[0].abs().max() < 1


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_pixels_give_zero(count: int) -> None:
    rows = torch.randn(count, 3, requires_grad=True)
    assert variance_term(rows) == 0
    assert uniformity_term(rows) == 0


# ---- the component at a site -----------------------------------------------------------------------------------------


def component_of(expression: str, dims: int = 2) -> tuple[Component, torch.nn.Module]:
    workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
    component = next(c for c in workspace.fresh_components({}) if c.name == "uniformity_variance")
    return component, workspace.network.train()


def step_of(network: torch.nn.Module, dims: int = 2, seed: int = 5) -> Step:
    images, labels = tiny_site("north", 3, dims).images.batch(torch.arange(3))
    generator = torch.Generator().manual_seed(seed)
    step = Step(None, network, images, labels, generator, 0, 0, 0, True, 0.0, 0.1)  # type: ignore[arg-type]
    step.output = network.features(step.inputs)
    return step


def test_certain_predictions_of_a_rare_class_reach_the_target_of_its_share() -> None:
    """5 % of all pixels: the balanced target asks for more foreground than there is."""
    labels = torch.zeros(1, 1000, dtype=torch.int64)
    labels[0, :50] = 1
    certain = 100 * torch.nn.functional.one_hot(labels[0], 3).float()
    shares = class_shares(labels, 3)
    assert shares.tolist() == pytest.approx([0.95, 0.05, 0])
    assert variance_term(certain, shares) == 0
    assert variance_term(certain) > 0.3
    nothing_found = 100 * torch.nn.functional.one_hot(torch.zeros_like(labels[0]), 3).float()
    assert variance_term(nothing_found, shares).item() == pytest.approx(2 * (0.05 * 0.95) ** 0.5 / 3)
    assert class_shares(labels[:0], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("target", ["balanced", "shares"])
@pytest.mark.parametrize("dims", [2, 3])
def test_terms_and_gradients_on_a_network(dims: int, target: str) -> None:
    component, network = component_of(f"feduv(variance=2, uniformity=3, pixels=11, target={target})", dims)
    step = step_of(network, dims)
    total = 3 * 8**dims
    pixels = draw_distinct(total, 11, torch.Generator().manual_seed(5))
    classes, features = (m.movedim(1, -1).reshape(total, -1) for m in (step.output.logits, step.output.decoder[-1]))
    shares = [(step.labels == c).double().mean().item() for c in range(3)] if target == "shares" else None
    wanted = {
        "variance": 2 * naive_variance(classes[pixels], shares),
        "uniformity": 3 * naive_uniformity(features[pixels]),
    }
    ours = component.loss(step)
    assert ours.keys() == wanted.keys()
    parameters = list(network.parameters())
    for name, term in wanted.items():
        torch.testing.assert_close(ours[name], term, rtol=1e-4, atol=1e-5)
        pair = [torch.autograd.grad(t, parameters, retain_graph=True, allow_unused=True) for t in (ours[name], term)]
        for a, b in zip(*pair, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert any(b is not None and b.abs().max() > 1e-4 for b in pair[1])


def test_a_second_pass_sees_the_same_pixels_and_another_step_others() -> None:
    component, network = component_of("feduv(pixels=5)")
    step = step_of(network)
    first = component.loss(step)
    state = step.generator.get_state()
    again = component.loss(step)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.equal(step.generator.get_state(), state)
    other = component.loss(step_of(network, seed=6))
    assert all(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("settings_text", "names"), [("variance=0", {"uniformity"}), ("uniformity=0", {"variance"})])
def test_a_term_of_weight_zero_is_not_there(settings_text: str, names: set[str]) -> None:
    component, network = component_of(f"feduv({settings_text})")
    assert component.loss(step_of(network)).keys() == names


def test_without_weights_nothing_is_drawn_and_the_run_is_that_of_fedavg(tmp_path: Path) -> None:
    off = "fedavg+uniformity_variance(variance=0, uniformity=0, pixels=5)"
    component, network = component_of(off)
    step = step_of(network)
    state = step.generator.get_state()
    assert component.loss(step) == {}
    assert torch.equal(step.generator.get_state(), state)
    short = {"rounds": 1, "local_epochs": 1}
    methods = enumerate(("fedavg", off, "feduv"))
    runs = [tiny_server(tmp_path / str(n), tiny_recipe(m, training=short)) for n, m in methods]
    for server in runs:
        server.fit()
    plain, zero, full = (final_tensors(server) for server in runs)
    assert_same(plain, zero)
    assert any(not torch.equal(plain[n], full[n]) for n in plain)


def test_one_pixel_in_all_is_no_reason_for_nan() -> None:
    component, network = component_of("feduv")
    step = step_of(network)
    step.output = Features([], [torch.randn(1, 4, 1, 1)], torch.randn(1, 3, 1, 1))
    assert component.loss(step) == {"variance": 0, "uniformity": 0}


def test_unlabelled_images_of_the_batch_count_too() -> None:
    """Neither term needs a label, so a site without any is regularised as well."""
    component, network = component_of("feduv(pixels=10000)")
    step = step_of(network)
    whole = component.loss(step)
    bare = step_of(network)
    bare.strong, bare.images, bare.labels = bare.images, bare.images[:0], bare.labels[:0]
    bare.output = step.output
    assert all(torch.equal(whole[name], value) for name, value in component.loss(bare).items())


def test_half_precision_stays_outside_the_terms() -> None:
    component, network = component_of("feduv")
    step = step_of(network)
    step.output.decoder[-1], step.output.logits = (m.bfloat16() for m in (step.output.decoder[-1], step.output.logits))
    with torch.autocast("cpu", torch.bfloat16):
        terms = component.loss(step)
    exact = step_of(network)
    exact.output = Features([], [step.output.decoder[-1].float()], step.output.logits.float())
    assert all(term.dtype == torch.float32 for term in terms.values())
    assert all(torch.equal(term, terms[name]) for name, term in component.loss(exact).items())
