"""Features of the sites before and after alignment, as points on a plane, for methods that align them.

``FOLDER/gallery/features.json``, which ``polyclinic report`` draws. What is compared each component says itself
(``Component.aligns``): what goes into a module and what comes out of it, or a map of the network in the reference's
model and in the method's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from polyclinic.components.base import Aligned
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.runs.compared_runs import ComparedRuns, compared_runs
from polyclinic.runs.feature_plane import Points, between_sites, joint_plane, total_variance
from polyclinic.runs.feature_samples import Place, Samples, features_at, samples_of_sites
from polyclinic.runs.made_tables import VERSION, read_made, write_made
from polyclinic.runs.tested_data import TestedData, open_tested_data, prepared_alike, reason_of
from polyclinic.runs.tested_models import TestedModels

_ALIKE = 1e-3  # of the variance: what is left after a module that gives all images the same statistics
_CLASS_POINT = "A point is the mean of a class's features in one test image."
_IMAGE_POINT = "A point is one test image: mean and standard deviation over space of every channel."
_SAME_UNITS = "Both clouds are centred and drawn in the same units, on their common first two principal axes."
_OWN_UNITS = (
    "Each cloud is centred and scaled to a total variance of 1, as another model has other units; both are drawn on "
    "their common first two principal axes."
)
_SHARE = (
    "The share of the variance that lies between sites is of all channels, within each class, and adjusted for the "
    "number of images: 0 where sites cannot be told apart."
)


@dataclass(frozen=True)
class FeaturesResult:
    """What is there now: ``path`` is ``features.json``, ``reused`` says that nothing had to be made."""

    path: Path
    panels: int
    skipped: list[dict[str, str]]
    reused: bool = False


def make_features(
    folder: str | Path,
    *,
    reference: str | None = None,
    plugins: bool = False,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
) -> FeaturesResult:
    """Make the panels of a folder, unless they are there and what they were made of is the same.

    Of the first seed, and of the first part of the protocol; of a study, for its first value. Methods that align
    nothing have no panel; those that cannot be shown are in ``skipped`` with the reason, and told to ``warn``.
    ``plugins`` allows those that the recipes name to run.
    """
    folder = Path(folder)
    runs = compared_runs(folder, reference)
    first = TestedModels.of(runs.folders[runs.reference], plugins)
    inputs = {**runs.inputs(), "data": first.where_data_is()}
    path = folder / "gallery" / "features.json"
    before = read_made(path)
    if before.get("inputs") == inputs:
        return FeaturesResult(path, len(before["panels"]), before["skipped"], reused=True)
    panels, skipped = _panels(runs, first, plugins, progress)
    table = {"version": VERSION, "reference": runs.reference, "seed": runs.seed, **runs.about}
    write_made(path, {**table, "panels": panels, "skipped": skipped, "inputs": inputs})
    for entry in skipped:
        warn(f"no features: {entry['method'] or 'all methods'}: {entry['reason']}")
    return FeaturesResult(path, len(panels), skipped)


def _panels(
    runs: ComparedRuns, first: TestedModels, plugins: bool, progress: Callable[[int, int, str], None]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    panels: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    sight: _Sight | None = None
    for number, (method, run) in enumerate(runs.folders.items()):
        progress(number, len(runs.folders), method)
        try:
            models = TestedModels.of(run, plugins)
            aligned = {c.name: c.aligns(models.workspace.network) for c in models.workspace.components}
            if any(aligned.values()):  # images are read only where they are needed
                sight = sight or _Sight.of(first)
                prepared_alike(models, sight.data)
                found = sight.panels(method, models, aligned, runs.reference)
                panels += [panel for panel in found if panel["after"]]
                skipped += [
                    {
                        "method": method,
                        "reason": f"{panel['title']}: no class is left in so coarse a map.",
                    }
                    for panel in found
                    if not panel["after"]
                ]
        except Exception as error:  # whatever is wrong, the report must go on without this panel
            skipped.append({"method": method, "reason": reason_of(error)})
    progress(len(runs.folders), len(runs.folders), "")
    return panels, skipped


@dataclass(frozen=True)
class _Sight:
    """The images that features are of, and the model of the reference."""

    data: TestedData
    part: ProtocolPart
    samples: Samples
    reference: TestedModels

    @classmethod
    def of(cls, reference: TestedModels) -> _Sight:
        data = open_tested_data(reference)
        part = next(iter(data.parts.values()))
        return cls(data, part, samples_of_sites(data, part, reference.workspace.network.multiples), reference)

    def panels(
        self, method: str, models: TestedModels, aligned: dict[str, tuple[Aligned, ...]], reference: str
    ) -> list[dict[str, Any]]:
        """The panels of one method, in one pass over the images, and one more with the model before."""
        network = models.workspace.network
        spots = [(component, one) for component, own in aligned.items() for one in own]
        after, inside = dict[str, Place](), dict[str, Place]()
        outside: dict[str, Aligned] = {}
        for component, one in spots:
            name = f"{component} {one.tap}"
            after[name] = Place(one.module or network.taps[one.tap], False, one.by_class)
            if one.module is not None:
                inside[f"{name} in"] = Place(one.module, True, one.by_class)
            else:
                outside[name] = one
        own = features_at(models, self.part, self.samples, after | inside)
        others: dict[str, Points] = {}
        if outside:
            initial = method == reference
            other = models if initial else self.reference
            places = {
                name: Place(other.workspace.network.taps[one.tap], False, one.by_class) for name, one in outside.items()
            }
            others = features_at(other, self.part, self.samples, places, initial)
        return [
            self._panel(method, component, one, own.get(f"{name} in") or others[name], own[name], reference)
            for component, one in spots
            for name in [f"{component} {one.tap}"]
        ]

    def _panel(
        self, method: str, component: str, one: Aligned, before: Points, after: Points, reference: str
    ) -> dict[str, Any]:
        inside = one.module is not None
        if not after.sites:
            return {"title": _title(component, one), "after": []}
        first, second, explained = joint_plane(before.vectors, after.vectors, same_units=inside)
        spread = total_variance(after.vectors) / (total_variance(before.vectors) or 1.0) if inside else None
        alike = spread is not None and spread < _ALIKE
        shares = {"before": between_sites(before), "after": None if alike else between_sites(after)}
        how = f"{reference} and {method}, both as tested"
        if inside:
            how = f"what goes into {component} and what comes out of it, in the tested model"
        elif method == reference:
            how = f"{method} before the first round and as tested"
        note = [f"Before and after: {how}.", _CLASS_POINT if one.by_class else _IMAGE_POINT]
        note += [_SAME_UNITS if inside else _OWN_UNITS, _SHARE, *(["After it all images are alike."] if alike else [])]
        return {
            "method": method, "component": component, "tap": one.tap,
            "title": _title(component, one),
            "explained": explained, "before": _points(before, first), "after": _points(after, second),
            "between_sites": {when: share for when, share in shares.items() if share is not None},
            "variance_left": spread, "note": " ".join(note), "part": self.part.name,
        }  # fmt: skip


def _title(component: str, one: Aligned) -> str:
    return f"{component}: {'class means' if one.by_class else 'features'} at {one.tap}"


def _points(points: Points, plane: Tensor) -> list[dict[str, Any]]:
    rows = zip(points.sites, points.classes, plane.tolist(), strict=True)
    return [{"site": site, "class": owner, "x": round(x, 5), "y": round(y, 5)} for site, owner, (x, y) in rows]
