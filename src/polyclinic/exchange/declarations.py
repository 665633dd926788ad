"""What a component lets out of a site, declared before anything does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shared:
    """Declares one tensor that leaves a site.

    A ``str`` in ``shape`` is a size that is only known at run time; the same name means the same size in all tensors of
    the component. ``below`` bounds integers: they are at least 0 and less than it, as the numbers of classes are.
    ``at_least`` bounds any numbers from below: variances, deviations and counts are at least 0. Integers that have it
    and no ``below`` count something; they stay so small that a sum over all sites fits into their type.
    """

    name: str
    shape: tuple[int | str, ...]
    what: str
    dtype: torch.dtype = torch.float32
    finite: bool = True
    below: int | None = None
    at_least: float | None = None
    at_most: int | None = None
    """The largest number of rows, where it is a run-time size and known to be bounded."""
    prototypes: bool = False
    """Whether the rows are prototypes, which are counted in the record; a row of zeros stands for an absent class."""
    pictures_of: int | None = None
    """Where the rows are pictures or label maps: the number of cases that each is the mean of."""
    squared: bool = False
    """Whether the numbers grow with the square of a site's intensities, as variances do: its root is compared."""

    def accepts(self, tensor: Tensor) -> bool:
        """Whether a tensor has the declared type and shape."""
        sizes_agree = len(self.shape) == tensor.dim() and all(
            isinstance(declared, str) or declared == size
            for declared, size in zip(self.shape, tensor.shape, strict=True)
        )
        return sizes_agree and tensor.dtype == self.dtype
