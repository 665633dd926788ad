"""Poolings and kernels that follow the spacing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.networks.anisotropy import pooling_plan, with_settled_network
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import make_recipe


def recipe(network: dict[str, Any] | None = None, **data: Any) -> Recipe:
    return make_recipe({"federation": "x", "network": {"anisotropic": "auto", **(network or {})}, "data": data})


def test_long_voxels_wait_until_the_others_have_caught_up() -> None:
    """A prostate in MRI, by hand: 3.6 mm are 5.8, 2.9 and 1.5 times as long as the shortest voxels of a level."""
    strides, kernels = pooling_plan((3.6, 0.62, 0.62), (20, 320, 256), 6)
    assert strides == ((1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2), (1, 2, 2))
    assert kernels == ((1, 3, 3), (1, 3, 3), *[(3, 3, 3)] * 5)


@pytest.mark.parametrize(
    ("spacing", "size", "strides"),
    [
        ((1.0, 1.0, 1.0), (40, 56, 40), ((2, 2, 2),) * 3),
        ((1.0, 1.0), (64, 64), ((2, 2),) * 4),
        ((5.0, 1.0, 1.0), (4, 16, 16), ((1, 2, 2),) * 2),
        ((1.0, 1.0, 1.0), (24, 4, 4), ((2, 1, 1), (2, 1, 1))),  # 12 voxels may become 6, 6 stay
        ((1.0, 1.0, 1.0), (7, 7, 7), ()),
    ],
)
def test_small_axes_are_not_pooled(spacing: Any, size: Any, strides: Any) -> None:
    assert pooling_plan(spacing, size, 4)[0] == strides


@given(st.lists(st.tuples(st.floats(0.3, 8), st.integers(4, 256)), min_size=2, max_size=3), st.integers(1, 6))
def test_voxels_never_grow_apart_and_four_are_left(axes: list[tuple[float, int]], depth: int) -> None:
    lengths, voxels = [axis[0] for axis in axes], [axis[1] for axis in axes]
    strides, kernels = pooling_plan(lengths, voxels, depth)
    assert len(kernels) == len(strides) + 1 <= depth + 1
    for stride, kernel in zip(strides, kernels, strict=False):
        assert set(stride) <= {1, 2}
        assert 2 in stride
        assert all(size == 3 for size, length in zip(kernel, lengths, strict=True) if length < 2 * min(lengths))
        lengths = [length * step for length, step in zip(lengths, stride, strict=True)]
        voxels = [-(-count // step) for count, step in zip(voxels, stride, strict=True)]
        assert all(count >= 4 for count, step in zip(voxels, stride, strict=True) if step == 2)


def test_a_recipe_that_fixes_spacing_and_size_is_settled_without_images() -> None:
    fixed = recipe(spacing=(3, 1, 1), patch=(8, 32, 32))

    def never() -> Any:
        raise AssertionError("images were looked at")

    settled = with_settled_network(fixed, never)
    assert settled.network.model_dump(include={"poolings", "kernels", "depth"}) == {
        "poolings": ((1, 2, 2), (2, 2, 2), (1, 2, 2)),
        "kernels": ((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
        "depth": 3,
    }
    assert with_settled_network(settled) is settled
    assert with_settled_network(recipe(spacing=(3, 1, 1), size=(8, 32, 32), fit="pad-crop")).network == settled.network


@pytest.mark.parametrize("data", [{"patch": (8, 32, 32)}, {"spacing": (3, 1, 1), "size": (8, 32, 32)}])
def test_other_recipes_ask_the_images_or_get_a_sentence(data: dict[str, Any]) -> None:
    settled = with_settled_network(recipe(**data), lambda: ((1.0, 1.0, 1.0), (16, 16, 16)))
    assert settled.network.depth == 2  # type: ignore[attr-defined]
    with pytest.raises(PolyclinicError, match=r"needs the spacing of all images .* give data\.spacing and data\.patch"):
        with_settled_network(recipe(**data))
    with pytest.raises(PolyclinicError, match="too small for a pooling"):
        with_settled_network(recipe(**data), lambda: ((1.0, 1.0, 1.0), (6, 6, 6)))


def test_nothing_is_done_where_nothing_is_open() -> None:
    for network in ({"anisotropic": "off"}, {"depth": 1, "poolings": [[1, 2]]}, {"name": "vit", "anisotropic": "off"}):
        given_recipe = recipe(network)
        assert with_settled_network(given_recipe) is given_recipe
