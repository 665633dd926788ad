"""The entries of a gallery: the picked cases of each site, predicted by each method and drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import private_folder, write_private
from polyclinic.data.federation import Task
from polyclinic.data.preprocessing import geometry_of
from polyclinic.data.sitedata import SiteData
from polyclinic.evaluation.aggregate import Row, mean
from polyclinic.evaluation.metric_registry import find_metric
from polyclinic.federation.scoring import ScoredCase, case_rows, scored_cases
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.compared_runs import ComparedRuns
from polyclinic.runs.gallery_cases import PickedCase, agree, pick_cases, rows_of_image
from polyclinic.runs.gallery_pictures import (
    Planes,
    choose_slices,
    colours,
    image_png,
    is_oriented,
    judged_numbers,
    mask_png,
    painted_regions,
    planes_of,
    shown_intensities,
)
from polyclinic.runs.plan import prepare_items
from polyclinic.runs.tested_data import TestedData, open_tested_data, prepared_alike, reason_of
from polyclinic.runs.tested_models import TestedModels

Progress = Callable[[int, int, str], None]


@dataclass
class _Shown:
    """One picked case on its way into the gallery."""

    picked: PickedCase
    data: SiteData
    intensities: NDArray[np.uint8]
    planes: Planes
    entry: dict[str, Any]


@dataclass
class GalleryMaking:
    """Fills ``sites`` and ``skipped``, a site at a time, so that the images of one site are in memory."""

    runs: ComparedRuns
    metric: str
    target: Path
    plugins: bool
    progress: Progress
    sites: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def fill(self, models: TestedModels) -> None:
        """Show what can be shown; ``models`` are those of the reference."""
        for method in self.runs.unfinished:
            self.skip("", method, f"is not finished for seed {self.runs.seed}")
        try:
            data = open_tested_data(models)
            picked = self._pick(models, data)
        except Exception as error:  # whatever is wrong with the data, the report must go on without pictures
            self.skip("", "", reason_of(error))
            return
        total, done = sum(map(len, picked.values())) * len(self.runs.folders), 0
        for site, cases in picked.items():
            shown = [one for case in cases if (one := self._open(data, case)) is not None]
            for method, run in self.runs.folders.items():
                self.progress(done, total, f"{method} at {site}")
                done += len(cases)
                self._predict(method, run, data, shown)
            # A case whose truth was never seen, because no method could predict it, has nothing to show.
            self.sites[site] = [one.entry for one in shown if one.entry["slices"]]
        self.progress(total, total, "")

    def _pick(self, models: TestedModels, data: TestedData) -> dict[str, list[PickedCase]]:
        if self.metric not in models.recipe.evaluation.metrics:
            measured = ", ".join(models.recipe.evaluation.metrics)
            raise PolyclinicError(f"{self.metric} was not measured; the test has {measured}.")
        rows = {part: models.rows(part) for part in data.parts}
        picked = pick_cases(rows, self.metric, find_metric(self.metric).better, data.by_slice)
        for site in data.federation.sites:
            if not picked.get(site):
                self.skip(site, "", "has no values of test cases in this run")
        return {site: cases for site, cases in picked.items() if cases}

    def _open(self, data: TestedData, picked: PickedCase) -> _Shown | None:
        """The picked case with its image prepared for prediction and for being looked at."""
        try:
            item = data.item(picked.site, picked.image)
            recipe = with_changes(data.recipe, {"data.cache": "off"})
            images = prepare_items(data.federation_of(picked.part, picked.site), recipe, [item], processes=1)
            planes = planes_of(geometry_of(item, data.federation, recipe.data), is_oriented(item))
            everything = {"test": torch.arange(len(images))}
            entry = {
                "rank": picked.rank, "case": picked.case, "image": picked.image, "part": picked.part,
                "seed": self.runs.seed, "value": picked.value, "scores": {}, "models": {}, "agrees": True,
                "differs": [], "size": list(planes.size), "slices": [], "start": 0,
            }  # fmt: skip
            shown = shown_intensities(item, data.federation, recipe.data)
            return _Shown(picked, SiteData(picked.site, images, everything), shown, planes, entry)
        except Exception as error:
            self.skip(picked.site, "", f"case {picked.case}: {reason_of(error)}")
            return None

    def _predict(self, method: str, run: Path, data: TestedData, shown: Sequence[_Shown]) -> None:
        try:
            models = TestedModels.of(run, self.plugins)
            prepared_alike(models, data)
        except Exception as error:
            self.skip(shown[0].picked.site if shown else "", method, reason_of(error))
            return
        reasons: dict[str, list[PickedCase]] = {}
        for one in shown:
            try:
                self._predict_one(method, models, data, one)
            except Exception as error:
                reasons.setdefault(reason_of(error), []).append(one.picked)
        for reason, cases in reasons.items():
            which = "" if len(cases) == len(shown) else f"case {', '.join(case.case for case in cases)}: "
            self.skip(cases[0].site, method, which + reason)

    def _predict_one(self, method: str, models: TestedModels, data: TestedData, shown: _Shown) -> None:
        picked, planes = shown.picked, shown.planes
        tested = rows_of_image(models.rows(picked.part), picked, self.metric, data.by_slice)
        if not tested:
            raise PolyclinicError("was not tested by this method.")
        source = tested[0].get("model", "")
        models.load(data.parts[picked.part], picked.site, source)
        cases = list(scored_cases(models.workspace, shown.data, "test"))
        again: list[Row] = [row for case in cases for row in case_rows(models.workspace, case, (self.metric,))]  # type: ignore[misc]
        self._draw(method, models, shown, *_painted(cases, models.task, planes.axis))
        entry = shown.entry
        value = mean(mean(values) for values in _by_image(tested).values())
        entry["scores"][method] = None if value != value else value
        if source:
            entry["models"][method] = source
        if not agree(tested, again):
            entry["agrees"] = False
            entry["differs"].append(method)

    def _draw(
        self, method: str, models: TestedModels, shown: _Shown, truth: NDArray[Any], prediction: NDArray[Any]
    ) -> None:
        """Write what is new: image and truth with the first method, then a mask for each.

        Both are numbers ``(*spatial)`` of what is judged, from 1 on.
        """
        planes, entry, palette = shown.planes, shown.entry, colours(len(models.task.judged))

        def mask(painted: NDArray[Any], index: int) -> str:
            return self._write(mask_png(planes.of(painted, index), planes.size, palette))

        if not entry["slices"]:
            indices, entry["start"] = choose_slices(truth, planes.axis)
            entry["slices"] = [
                {
                    "index": index,
                    "image": self._write(image_png(planes.of(shown.intensities, index), planes.size)),
                    "truth": mask(truth, index),
                    "predictions": {},
                }
                for index in indices
            ]
        for one in entry["slices"]:
            one["predictions"][method] = mask(prediction, one["index"])

    def _write(self, png: bytes) -> str:
        """Write a picture under a name made of its content: equal pictures are one file, and none is overwritten."""
        name = f"{sha256(png).hexdigest()[:20]}.png"
        private_folder(self.target)
        if not (self.target / name).is_file():
            write_private(self.target / name, png, sync=False)
        return name

    def skip(self, site: str, method: str, reason: str) -> None:
        """Say what is not shown; an empty name stands for all."""
        self.skipped.append({"site": site, "method": method, "reason": reason})


def _by_image(rows: Iterable[Row]) -> dict[str, list[float]]:
    images: dict[str, list[float]] = {}
    for row in rows:
        images.setdefault(row["image"], []).append(row["value"])
    return images


def _painted(cases: Sequence[ScoredCase], task: Task, axis: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is painted ``(*spatial)`` as truth and as prediction of one image.

    Regions that were predicted by sums are painted as they were scored, which their class map does not show. Slices of
    the image may have been scored together or one by one.
    """
    numbers = judged_numbers(task)
    truths = [numbers[case.truth] for case in cases]
    predictions = [
        numbers[case.prediction] if case.masks is None else painted_regions(case.masks, task) for case in cases
    ]
    if axis is None or cases[0].sample.slice_index is None:
        return truths[0], predictions[0]
    if len(cases) == 1 and truths[0].ndim == 3:  # stacked along the last axis
        return np.moveaxis(truths[0], -1, axis), np.moveaxis(predictions[0], -1, axis)
    return np.stack(truths, axis), np.stack(predictions, axis)
