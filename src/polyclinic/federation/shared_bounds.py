"""How large the numbers that a site shares may be, beside those that the other sites share in the same round.

They are compared as updates are, with the median over the *other* sites, and far more loosely, because no honest site
may be refused. A tensor stands for its largest absolute value (of a variance for the root of it). That may be a million
times the others': raw intensities of one hospital beside intensities from 0 to 1 at another are 65,535 to 1, a gap or
a gradient may be anything near 0, so values below a million are never refused either. Above that honest numbers do not
come, and a style of 1e18 makes every site's training fail that uses it.

Only what is shared in one round is compared: what a component shares changes from round to round, and the first may
have nothing but zeros. A site whose tensor is zeros or has no rows (no labelled image, no new prototype) says nothing
about how large others are. Integers are counts, and a site with a thousand times the pixels is no attack. With one
other site nobody can say which of the two is odd, so there the factor is a thousand times wider: beyond it the squares
of the numbers, which norm layers take, exceed what any weight may hold. A site alone harms nobody but itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, sqrt

from torch import Tensor

from polyclinic.exchange.checks import largest_value
from polyclinic.exchange.declarations import Shared

_FAR = 1e6
_FAR_OF_TWO = 1e9
_WIDER_THAN_WEIGHTS = 1e3  # the weights' own factor (training.max_update_ratio) is 1000

SharedByComponent = Mapping[str, Mapping[str, Mapping[str, Tensor]]]
"""By component, site and name."""
Declared = Mapping[str, tuple[Shared, ...]]


def shared_outliers(shared: SharedByComponent, declared: Declared) -> dict[str, str]:
    """The sites that share far larger numbers than the others, each with the reason in one sentence."""
    problems: dict[str, str] = {}
    for component, name, sizes in _compared(shared, declared):
        far = _FAR if len(sizes) > 2 else _FAR_OF_TWO
        for site, usual in _usual(sizes).items():
            if sizes[site] > far * max(1.0, usual):
                problems.setdefault(
                    site,
                    f"component {component} shares numbers as large as {sizes[site]:.3g} in '{name}', where "
                    f"{usual:.3g} is usual at the other sites",
                )
    return problems


def shared_deviations(shared: SharedByComponent, declared: Declared) -> dict[str, float]:
    """By site, how far its numbers stand out, on the scale on which changes of weights do (``deviations``)."""
    result: dict[str, float] = {}
    for _, _, sizes in _compared(shared, declared):
        for site, usual in _usual(sizes).items():
            result[site] = max(result.get(site, 1.0), sizes[site] / max(1.0, usual) / _WIDER_THAN_WEIGHTS)
    return result


def _compared(shared: SharedByComponent, declared: Declared) -> list[tuple[str, str, dict[str, float]]]:
    """Component, name, and the sizes by site of all that can be compared."""
    found = []
    for component, sites in sorted(shared.items()):
        for declaration in declared.get(component, ()):
            sizes = {site: _size(tensors[declaration.name], declaration.squared) for site, tensors in sites.items()}
            found.append((component, declaration.name, {site: size for site, size in sizes.items() if size}))
    return found


def _size(tensor: Tensor, squared: bool) -> float:
    """0 for what says nothing; a value that is not finite is one that the component is ready for."""
    largest = largest_value(tensor)
    if not isfinite(largest):
        return 0.0
    return sqrt(largest) if squared else largest


def _usual(sizes: Mapping[str, float]) -> dict[str, float]:
    """By site the median of the others, where there is another."""
    ordered = sorted(sizes, key=sizes.__getitem__)
    rest = len(ordered) - 1

    def without(place: int, number: int) -> float:
        return sizes[ordered[number if number < place else number + 1]]

    if rest < 1:
        return {}
    return {
        site: (without(place, (rest - 1) // 2) + without(place, rest // 2)) / 2 for place, site in enumerate(ordered)
    }
