"""Scores of the network on a site's own images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyclinic.core.side_by_side import side_by_side
from polyclinic.data.imageset import Sample
from polyclinic.data.sitedata import SiteData
from polyclinic.evaluation.case_metrics import case_metrics, dice_per_image
from polyclinic.evaluation.regions import region_dice, region_masks, region_metrics
from polyclinic.exchange.checks import is_finite
from polyclinic.exchange.messages import Evaluation

if TYPE_CHECKING:
    from polyclinic.federation.workspace import Workspace


class ScoredCase(NamedTuple):
    """What is scored as one; the label maps are ``(*spatial)``.

    ``masks`` ``(region, *spatial)`` are there where regions are predicted by sums, which no label map can say.
    """

    sample: Sample
    prediction: NDArray[Any]
    truth: NDArray[Any]
    spacing: tuple[float, ...] | None
    masks: NDArray[np.bool_] | None = None


def score_quickly(workspace: Workspace, data: SiteData, split: str, round_number: int) -> Evaluation:
    """Mean Dice over the labelled images of a split (foreground classes, then images), for validation.

    A model without a single batch of finite outputs has no Dice: the class of a NaN would be any. Whether any pixel was
    predicted as foreground is told beside it.
    """
    classes, regions = len(workspace.task.classes), list(workspace.task.judged.values())
    policy = workspace.recipe.policies.empty_masks
    values, usable, foreground = [], False, False
    for _, probabilities, labels in _predictions(workspace, data, split):
        predicted, masks = probabilities.argmax(dim=1), _masks(workspace, probabilities)
        usable = usable or is_finite(probabilities)
        foreground = foreground or bool((predicted if masks is None else masks).any())
        labels = labels.to(predicted.device)
        if masks is None:
            dice_values = dice_per_image(predicted, labels, classes, policy, regions)
        else:
            dice_values = region_dice(masks, labels, regions, policy)
        values.append(dice_values.nanmean(dim=1).cpu())
    scores = torch.cat(values) if values else torch.empty(0)
    dice = float(scores.nanmean()) if usable else nan
    return Evaluation(data.site, round_number, len(scores), dice, background_only=bool(values) and not foreground)


def score_cases(workspace: Workspace, data: SiteData, split: str, round_number: int) -> Evaluation:
    """Every metric of every case and class, for the test, in ``engine.threads`` threads.

    Slices of a volume are stacked by default.
    """
    rows: list[dict[str, Any]] = []
    images = 0
    scored = side_by_side(
        partial(case_rows, workspace), scored_cases(workspace, data, split), workspace.recipe.engine.threads
    )
    for found in scored:
        images += 1
        rows += found
    dice = [row["value"] for row in rows if row["metric"] == "dice" and row["value"] == row["value"]]
    return Evaluation(data.site, round_number, images, float(np.mean(dice)) if dice else nan, rows)


def _predictions(workspace: Workspace, data: SiteData, split: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices, probabilities ``(batch, class, *spatial)`` and labels of each batch of a split's labelled images."""
    settings = workspace.recipe.evaluation
    size = settings.batch_size if data.images.uniform else 1
    indices = data.labelled_indices(split)
    parts = torch.split(indices, size) if len(indices) else ()
    for part, following in zip(parts, (*parts[1:], indices[:0]), strict=False):
        images, labels = data.images.batch(part)
        data.images.will_need(following)
        yield part, workspace.predict(images), labels


def _masks(workspace: Workspace, probabilities: Tensor) -> Tensor | None:
    """Masks ``(batch, region, *spatial)`` of a task whose regions are predicted by sums."""
    if not workspace.task.regions or workspace.recipe.evaluation.regions == "argmax":
        return None
    return region_masks(probabilities, list(workspace.task.judged.values()))


def scored_cases(workspace: Workspace, data: SiteData, split: str) -> Iterator[ScoredCase]:
    """What is scored as one: an image, or the volume that slices came from (stacked along the last axis)."""
    narrow = torch.uint8 if len(workspace.task.classes) <= 256 else torch.int64
    single = (
        (data.images.samples[index], *maps)
        for part, probabilities, labels in _predictions(workspace, data, split)
        for predicted in [probabilities.argmax(dim=1).to(narrow).cpu().numpy()]
        for masks in [_masks(workspace, probabilities)]
        for regions in [[None] * len(part) if masks is None else masks.cpu().numpy()]
        for index, *maps in zip(part.tolist(), predicted, labels.to(narrow).numpy(), regions, strict=True)
    )
    per = workspace.recipe.evaluation.per
    for _, group in groupby(single, key=lambda scored: scored[0].name):
        slices = list(group)
        if slices[0][0].slice_index is None or per == "image":
            yield from (ScoredCase(sample, p, t, sample.spacing, masks) for sample, p, t, masks in slices)
            continue
        first = slices[0][0]
        spacing = None if first.spacing is None else (*first.spacing, first.slice_spacing or 1.0)
        predicted, truth = (np.stack([scored[which] for scored in slices], -1) for which in (1, 2))
        masks = None if slices[0][3] is None else np.stack([scored[3] for scored in slices], -1)
        yield ScoredCase(first, predicted, truth, spacing, masks)


def case_rows(workspace: Workspace, case: ScoredCase, metrics: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A row for each metric and judged class of a case; ``metrics`` are the recipe's by default."""
    sample, prediction, truth, spacing, masks = case
    settings, policies, judged = workspace.recipe.evaluation, workspace.recipe.policies, workspace.task.judged
    regions, spacing = list(judged.values()), None if settings.units == "pixel" else spacing
    how = (settings.metrics if metrics is None else metrics, spacing, policies.empty_masks, policies.distance_penalty)
    values = (
        case_metrics(prediction, truth, len(workspace.task.classes), *how, regions)
        if masks is None
        else region_metrics(masks, truth, regions, *how)
    )
    image = sample.name
    if sample.slice_index is not None and settings.per == "image":
        image = f"{sample.name}[{sample.slice_index}]"
    return [
        {
            "site": sample.site,
            "case": sample.case,
            "image": image,
            "class": name,
            "metric": metric,
            "value": value,
        }
        for metric, by_class in values.items()
        for name, value in zip(judged, by_class, strict=True)
    ]
