"""Poolings and kernels that follow the spacing of voxels, and where a recipe's ``network.anisotropic`` is settled.

The rule is that of nnU-Net (Isensee et al., *nnU-Net*, Nature Methods 2021, supplementary note 3): an axis is pooled
while its voxels are less than twice as long as the shortest ones and four voxels or more are left (six, where it is the
only one); before that its kernels are 1, so that nothing is mixed over distances that other axes do not know yet. From
there on they are 3, and in the bottleneck all are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import Recipe, UNetSettings
from polyclinic.recipe.changes import with_changes

_LEAST_LEFT = 4  # voxels of an axis after a pooling
_NEAR = 2.0  # times the shortest voxel: what is longer waits
Sizes = tuple[tuple[int, ...], ...]
Grid = tuple[Sequence[float], Sequence[int]]
"""Millimetres and voxels along each axis of what the network sees."""


def pooling_plan(spacing: Sequence[float], size: Sequence[int], depth: int) -> tuple[Sizes, Sizes]:
    """The strides of at most ``depth`` poolings, and the kernels of the levels, one more.

    >>> pooling_plan((3.0, 1.0, 1.0), (8, 32, 32), depth=4)
    (((1, 2, 2), (2, 2, 2), (1, 2, 2)), ((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)))
    """
    lengths, voxels, kernel = list(spacing), list(size), [1] * len(size)
    strides, kernels = list[tuple[int, ...]](), list[tuple[int, ...]]()
    while len(strides) < depth:
        large = [axis for axis, count in enumerate(voxels) if count >= 2 * _LEAST_LEFT]
        shortest = min((lengths[axis] for axis in large), default=0.0)
        pooled = [axis for axis in large if lengths[axis] < _NEAR * shortest]
        if not pooled or (len(pooled) == 1 and voxels[pooled[0]] < 3 * _LEAST_LEFT):
            break
        kernel = [3 if length < _NEAR * min(lengths) else old for length, old in zip(lengths, kernel, strict=True)]
        kernels.append(tuple(kernel))
        strides.append(tuple(2 if axis in pooled else 1 for axis in range(len(size))))
        for axis in pooled:
            lengths[axis], voxels[axis] = 2 * lengths[axis], -(-voxels[axis] // 2)
    return tuple(strides), (*kernels, (3,) * len(size))


def with_settled_network(recipe: Recipe, grid: Callable[[], Grid] | None = None) -> Recipe:
    """The recipe with poolings and kernels written out, where ``network.anisotropic = "auto"`` leaves them open.

    What the recipe itself fixes counts, so that a server without images finds the same; else ``grid`` is asked.
    """
    network = recipe.network
    if not isinstance(network, UNetSettings) or network.anisotropic == "off" or network.poolings is not None:
        return recipe
    fixed = _fixed_grid(recipe)
    if fixed is None and grid is None:
        raise PolyclinicError(
            'network.anisotropic = "auto" needs the spacing of all images in one place; give data.spacing and '
            "data.patch, or network.poolings and network.kernels, as a run on one machine has them in its recipe.toml."
        )
    spacing, size = fixed or grid()  # type: ignore[misc]
    poolings, kernels = pooling_plan(spacing, size, network.depth)
    if not poolings:
        raise PolyclinicError(
            f'network.anisotropic = "auto": images of size {list(size)} are too small for a pooling; use a larger '
            "data.patch or data.size."
        )
    return with_changes(
        recipe, {"network.poolings": poolings, "network.kernels": kernels, "network.depth": len(poolings)}
    )


def _fixed_grid(recipe: Recipe) -> Grid | None:
    """Spacing and size that the recipe fixes by itself: resampled, and then at most cut."""
    data = recipe.data
    stretched = data.size != "auto" and data.fit == "resize"
    size = data.patch or (data.size if data.size != "auto" else None)
    if data.spacing is None or stretched or size is None or len(size) != len(data.spacing):
        return None
    return data.spacing, size
