"""Which values of a label file are which class, where ``federation.toml`` says so: several may be one class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from polyclinic.core.errors import PolyclinicError, suggestion

Values = tuple[int, ...] | Literal["nonzero"]
"""The values of a class, or all above 0 that no other class has."""


@dataclass(frozen=True)
class LabelValues:
    """Pairs of a value and the number of its class; ``others`` is the class of all further values above 0."""

    pairs: tuple[tuple[int, int], ...]
    others: int | None = None

    def classes_of(self, array: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], list[float]]:
        """Classes of the same shape, and the values that belong to none."""
        classes = np.zeros(array.shape, dtype=np.uint8)
        if self.others is not None:
            classes[array > 0] = self.others
        for value, number in self.pairs:
            classes[array == value] = number
        named = {value for value, _ in self.pairs}
        unknown = [v for v in np.unique(array).tolist() if v not in named and not (v > 0 and self.others is not None)]
        return classes, unknown


def label_values(origin: str, table: Mapping[str, Values], classes: tuple[str, ...]) -> LabelValues | None:
    """The table ``[labels]`` of ``origin``, checked against the classes; ``None`` where it is empty. 0 is background.

    >>> label_values("federation.toml", {"tumour": (1, 2, 4)}, ("background", "tumour"))
    LabelValues(pairs=((0, 0), (1, 1), (2, 1), (4, 1)), others=None)
    """
    if not table:
        return None
    owners: dict[int, str] = {0: classes[0]}
    others: str | None = None
    for name, values in table.items():
        if name not in classes:
            hint = suggestion(name, classes) or f"; classes are {', '.join(classes)}."
            raise PolyclinicError(f"{origin} gives values to '{name}'{hint}")
        if values == "nonzero":
            if others is not None:
                raise PolyclinicError(f"{origin} says \"nonzero\" for '{others}' and '{name}'; keep one of them.")
            others = name
            continue
        for value in values:
            if owners.setdefault(int(value), name) != name:
                raise PolyclinicError(
                    f"{origin} gives the value {value} to '{owners[int(value)]}' and '{name}'; keep one of them "
                    "(0 is the background)."
                )
    pairs = tuple((value, classes.index(name)) for value, name in sorted(owners.items()))
    return LabelValues(pairs, None if others is None else classes.index(others))
