"""Which settings and methods to start from, for a federation that was checked: reasons, and the numbers behind them.

Settings follow from the images; methods from what was measured on the federations most like this one
(``evidence.py``). Where nothing was measured, the advice says so: it never repeats a paper's promise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, log2, prod

from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.evidence import Evidence, MeasuredRow, MeasuredTable, distance
from polyclinic.recipe import DataSettings, UNetSettings

TRAINING_PAGE = "docs/explanation/training.md"
_DEFAULTS_PAGE = "benchmarks/real/training_defaults.md"
_ALIKE = 1.5  # of `distance`: with more, the nearest measured federation is another kind
_INTENSITY_PAGE = "benchmarks/real/pathfl.md"
_PATCH = 96
_FEW_CASES = 10
_RARE = 0.005  # share of an image
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


@dataclass(frozen=True)
class Measured:
    """One measurement of a method."""

    table: MeasuredTable
    row: MeasuredRow


@dataclass(frozen=True)
class MethodAdvice:
    """A method to try. ``measured`` is on the federations most like this one, the nearest first."""

    method: str
    reason: str
    measured: tuple[Measured, ...]
    cost: float | None
    """A round's time over FedAvg's; None where it was not measured."""

    @property
    def verdict(self) -> str:
        """What the nearest measurement says; ``not measured`` without any."""
        return (self.measured[0].row.verdict or "reference") if self.measured else "not measured"


@dataclass(frozen=True)
class Advice:
    """What to start from."""

    traits: FederationTraits
    settings: tuple[Setting, ...]
    methods: tuple[MethodAdvice, ...]
    nearest: MeasuredTable | None
    """The measured federation that is most like this one."""
    alike: bool
    """Whether it is like this one at all."""
    notes: tuple[str, ...]

    @property
    def compared(self) -> tuple[str, ...]:
        """The methods to compare: the reference first, without those that were worse on a federation like this one."""
        worse = {one.method for one in self.methods if one.verdict == "worse" and self.alike}
        return tuple(one.method for one in self.methods if one.method not in worse)


def advise(traits: FederationTraits, evidence: Evidence, unseen: bool = False, labelled: int | None = None) -> Advice:
    """Advice for a federation; ``unseen``: the model will be used at sites that take no part in training.

    ``labelled`` is how many images of a site will have labels; without it all that have one now.
    """
    few = labelled is not None or traits.labelled < 1
    settings = tuple(setting for rule in _SETTINGS if (setting := rule(traits)) is not None)
    near = _near(traits, [table for table in evidence.tables if _judges_alike(table, unseen, few)], settings)
    methods = [
        MethodAdvice(method, reason, _measured(method, near), evidence.costs.get(method.split("(")[0]))
        for method, reason in _candidates(traits, unseen, few, near)
    ]
    return Advice(
        traits,
        settings,
        tuple(methods),
        near[0] if near else None,
        bool(near) and distance(traits, near[0].traits) <= _ALIKE,
        tuple(_notes(traits, few)),
    )


def _near(
    traits: FederationTraits, tables: Iterable[MeasuredTable], settings: Iterable[Setting]
) -> list[MeasuredTable]:
    """Tables of federations that can be compared, the most alike first; of one federation's, those with the advised
    intensities first."""
    advised = next((json.loads(one.value) for one in settings if one.key == "data.intensity"), DataSettings().intensity)
    found = sorted(tables, key=lambda table: (distance(traits, table.traits), table.intensity != advised))
    return [table for table in found if distance(traits, table.traits) < inf]


def _judges_alike(table: MeasuredTable, unseen: bool, few: bool) -> bool:
    """Whether a table answers the question: full labels say nothing of few, nor own test images of unseen sites."""
    return (table.protocol == "leave-one-site-out") == unseen and (table.labelled is not None) == few


def _measured(method: str, tables: list[MeasuredTable]) -> tuple[Measured, ...]:
    """A method's rows in the tables of up to three federations, the nearest first."""
    found: dict[str, Measured] = {}
    for table in tables:
        row = table.row(method)
        if row is not None and table.federation not in found:
            found[table.federation] = Measured(table, row)
    return tuple(found.values())[:3]


def _candidates(traits: FederationTraits, unseen: bool, few: bool, near: list[MeasuredTable]) -> list[tuple[str, str]]:
    """Methods with the reason to try each, the reference first; a method stands once."""
    reference = "fl_lower" if few else "fedavg"
    wanted = [(reference, "the reference: what every other method has to beat")]
    for table in near[:1]:
        gain = table.best_gain()
        if gain is not None:
            wanted.append((gain.method, f"the largest gain on {table.federation}, the measured federation most alike"))
    if few:
        wanted += [
            ("fixmatch", "unlabelled images, by confident predictions on them"),
            ("fgasl", "unlabelled images and unseen sites, by two teachers"),
        ]
    if traits.largest_site >= 2 * traits.smallest_site and not few:
        wanted.append(("fedavg(weighting=uniform)", "sites differ in size, and each may count the same"))
    if traits.shift_word in ("clear", "strong") and not few:
        if not unseen:
            wanted.append(("fedbn", "sites look different, and each keeps its own normalisation"))
        wanted.append(("fedbcs", "sites look different: styles recalibrated, classes aligned by prototypes"))
        wanted.append(("pathfl", "sites look different: styles exchanged, deep features aligned"))
    if traits.dims == 3 and not few:
        wanted.append(("fsf3a", "volumes: Dice, edges and patches of deep features"))
    found: dict[str, str] = {}
    for method, reason in wanted:
        found.setdefault(method, reason)
    return list(found.items())


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
    if middle is None:
        return None
    reason = (
        f"the structures of 19 in 20 images of every site lie in the middle {_by(middle)}: a step learns from more "
        f"images for the same work ({_DEFAULTS_PAGE}); nothing is found outside of it, so look whether that suits yours"
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


def _steps(traits: FederationTraits) -> Setting | None:
    if traits.largest_site < 4 * traits.smallest_site:
        return None
    reason = (
        f"sites have {traits.smallest_site} to {traits.largest_site} images: with as many steps each, the small ones "
        "are not drowned"
    )
    return Setting("training.steps_per_epoch", "8", reason)


_SETTINGS: tuple[Callable[[FederationTraits], Setting | None], ...] = (
    _patch, _foreground, _crop, _whole, _intensity, _anisotropic, _depth, _dice_classes, _steps,
)  # fmt: skip


def _list(numbers: Iterable[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def _by(numbers: Iterable[int]) -> str:
    return " x ".join(map(str, numbers))


def _notes(traits: FederationTraits, few: bool) -> list[str]:
    """What to know before trusting a comparison on this federation."""
    notes = []
    if traits.sites == 1:
        notes.append("one site is no federation: every method is FedAvg, which is training at that site")
    if traits.sites == 2 and few:
        notes.append("with two sites FGASL's weights only say which of the two has the larger gap")
    if traits.smallest_site < _FEW_CASES:
        notes.append(
            f"the smallest site has {traits.smallest_site} images, of which a fifth is tested: intervals will be wide; "
            "protocol.kind = 'k-fold' tests them all"
        )
    return notes
