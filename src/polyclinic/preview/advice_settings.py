"""Which settings follow from a federation's images: a rule for each key, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log2, prod

from polyclinic.data.federation_traits import FederationTraits
from polyclinic.recipe import UNetSettings

TRAINING_PAGE = "docs/explanation/training.md"
_DEFAULTS_PAGE = "benchmarks/real/training_defaults.md"
_INTENSITY_PAGE = "benchmarks/real/pathfl.md"
_MIDDLE_RECIPE = "benchmarks/real/recipes/slices.toml"
_FEW_LABELS_PAGE = "docs/how-to/few-labels.md"
_PATCH = 96
_POOLED = 16  # what four poolings divide
_LEAST_MIDDLE = 64  # pixels: what is around a structure tells, too
_UP_TO_THE_EDGES = 0.9  # share of an image that structures reach over
_LESS_OF_IT = 0.7  # share of an image that is worth cutting out


@dataclass(frozen=True)
class Setting:
    """A key of the recipe to set, and why."""

    key: str
    value: str
    """As it stands in TOML."""
    reason: str


def settings_for(traits: FederationTraits, few: bool) -> tuple[Setting, ...]:
    """The settings to change; ``few``: some images have no label, so that methods may learn from those, too."""
    found = [rule(traits) for rule in _RULES]
    return tuple(setting for setting in (*found, _steps(traits, few)) if setting is not None)


def _patch(traits: FederationTraits) -> Setting | None:
    """Structures that are thin or lie all over an image in patches; volumes too, as soon as they are larger, because a
    whole one fits few memories."""
    everywhere = _lie_everywhere(traits)
    if traits.size is None or max(traits.size) <= _PATCH or not (traits.is_thin or traits.dims == 3 or everywhere):
        return None
    # A multiple of 8 along each axis, so that three poolings divide it.
    edges = [_PATCH if traits.dims == 2 else min(64, max(8, size // 8 * 8)) for size in traits.size]
    reason = (
        f"structures are about {traits.width:.0f} pixels wide: patches keep them as they are, small images lose them "
        f"({TRAINING_PAGE})"
        if traits.is_thin
        else f"structures of about {traits.width:.0f} pixels lie all over the images: a patch shows several, with what "
        "is around them"
        if everywhere
        else f"volumes of up to {_by(traits.size)} voxels; as large as memory allows is better (docs/how-to/volumes.md)"
    )
    return Setting("data.patch", _list(edges), reason)


def _lie_everywhere(traits: FederationTraits) -> bool:
    """Whether 2D structures are small beside a patch and lie up to the edges of images."""
    if traits.dims == 3 or not traits.size or not traits.width or not traits.middle:
        return False
    reach = prod(traits.middle) / prod(traits.size)
    return len(traits.middle) == len(traits.size) and reach > _UP_TO_THE_EDGES and traits.width <= _PATCH / 4


def _foreground(traits: FederationTraits) -> Setting | None:
    if _patch(traits) is None:
        return None
    return Setting("data.foreground", "0.5", "half of the patches hold foreground, so that hardly a batch is without")


def _middle(traits: FederationTraits) -> tuple[int, ...] | None:
    """The middle of bulky structures' images, rounded up for the poolings, where it leaves enough out to pay."""
    if traits.dims == 3 or traits.is_thin or traits.size is None or traits.middle is None:
        return None
    middle = tuple(max(_LEAST_MIDDLE, -(-size // _POOLED) * _POOLED) for size in traits.middle)
    return middle if prod(middle) <= _LESS_OF_IT * prod(traits.size) and len(middle) == 2 else None


def _crop(traits: FederationTraits) -> Setting | None:
    middle = _middle(traits)
    if middle is None or traits.size is None:
        return None
    share = prod(middle) / prod(traits.size)
    reason = (
        f"the structures of 19 in 20 images of every site lie in the middle {_by(middle)}: a step on it is {share:.0%} "
        f"of the work, which leaves room for a larger training.batch_size ({_MIDDLE_RECIPE}); nothing is found outside "
        "of it, so look whether that suits yours"
    )
    return Setting("data.crop", _list(middle), reason)


def _whole(traits: FederationTraits) -> Setting | None:
    size = _middle(traits) or traits.size
    if traits.dims == 3 or traits.is_thin or _patch(traits) or size is None or traits.width is None or max(size) > 256:
        return None
    reason = f"structures are about {traits.width:.0f} pixels wide: where they are, only the whole image tells"
    return Setting("data.size", _list(size), f"{reason} ({_DEFAULTS_PAGE})")


def _intensity(traits: FederationTraits) -> Setting | None:
    if traits.polarity != "mixed":
        return None
    reason = "structures are brighter than their surroundings at some sites and darker at others: mixed modalities"
    if traits.pictures:
        reason += f", which the brightness and colour of pictures tell ({_INTENSITY_PAGE})"
        return Setting("data.intensity", '"full-range"', reason)
    return Setting("data.intensity", '"site"', reason)


def _anisotropic(traits: FederationTraits) -> Setting | None:
    if traits.dims == 2 or traits.anisotropy < 2:
        return None
    reason = f"voxels are {traits.anisotropy:.1f} times as long along one axis as along another"
    return Setting("network.anisotropic", '"auto"', reason)


def _dice_classes(traits: FederationTraits) -> Setting | None:
    if not traits.is_thin:
        return None
    reason = f"the background's Dice halves the weight of a thin structure ({_DEFAULTS_PAGE}, retina_vessel)"
    return Setting("training.dice_classes", '"foreground"', reason)


def _depth(traits: FederationTraits) -> Setting | None:
    """As many poolings as leave two cells of the smallest image, if that is fewer than the default."""
    if traits.size is None or _anisotropic(traits) is not None:
        return None
    depth = max(1, int(log2(min(traits.size))) - 1)
    if depth >= UNetSettings().depth:
        return None
    return Setting("network.depth", str(depth), f"images of {_by(traits.size)} have no room for more poolings")


def _steps(traits: FederationTraits, few: bool) -> Setting | None:
    if few:
        reason = (
            "as many steps for every method: a walk over all images is longer than one over the labelled ones, so that "
            f"a gain could come from longer training ({_FEW_LABELS_PAGE})"
        )
        return Setting("training.steps_per_epoch", "20", reason)
    if traits.largest_site < 4 * traits.smallest_site:
        return None
    reason = (
        f"sites have {traits.smallest_site} to {traits.largest_site} images: with as many steps each, the small ones "
        "are not drowned"
    )
    return Setting("training.steps_per_epoch", "8", reason)


_RULES: tuple[Callable[[FederationTraits], Setting | None], ...] = (
    _patch, _foreground, _crop, _whole, _intensity, _anisotropic, _depth, _dice_classes,
)  # fmt: skip


def _list(numbers: Iterable[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def _by(numbers: Iterable[int]) -> str:
    return " x ".join(map(str, numbers))
