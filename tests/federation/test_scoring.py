"""Scores of a site's images against metrics computed one image at a time; slices of a volume are one case."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from statistics import mean

import pytest
import torch

from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.evaluation.case_metrics import case_metrics
from polyclinic.federation.scoring import case_rows, score_cases, score_quickly, scored_cases
from polyclinic.federation.workspace import Workspace, build_workspace
from support import tiny_recipe, tiny_site, tiny_task


def workspace_of(**sections: dict[str, object]) -> Workspace:
    return build_workspace(tiny_recipe(**sections), tiny_task())


def dice_by_hand(workspace: Workspace, data: SiteData, split: str) -> list[list[float]]:
    values = []
    for index in data.labelled_indices(split):
        images, labels = data.images.batch(index[None])
        predicted = workspace.predict(images).argmax(1)[0].numpy()
        policies = workspace.recipe.policies
        scores = case_metrics(
            predicted, labels[0].numpy(), 3, ("dice",), None, policies.empty_masks, policies.distance_penalty,
            list(workspace.task.judged.values()),
        )  # fmt: skip
        values.append(list(scores["dice"]))
    return values


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_the_quick_score_is_the_mean_over_classes_then_images(batch_size: int) -> None:
    workspace, data = workspace_of(evaluation={"batch_size": batch_size}), tiny_site("north", 5)
    expected = mean(mean(v for v in values if not isnan(v)) for values in dice_by_hand(workspace, data, "train"))
    score = score_quickly(workspace, data, "train", 4)
    assert (score.site, score.round, score.images) == ("north", 4, 5)
    assert score.dice == pytest.approx(expected, abs=1e-6)


def test_every_case_class_and_metric_has_a_row() -> None:
    workspace, data = workspace_of(evaluation={"metrics": ["dice", "iou"]}), tiny_site("north", 3)
    score = score_cases(workspace, data, "train", 0)
    assert len(score.rows) == 3 * 2 * 2
    dice = [row["value"] for row in score.rows if row["metric"] == "dice"]
    assert dice == pytest.approx([v for values in dice_by_hand(workspace, data, "train") for v in values], nan_ok=True)


def test_a_split_without_labels_has_no_score() -> None:
    data = tiny_site("north", 3, labelled=False)
    for score in (score_quickly, score_cases):
        result = score(workspace_of(), data, "val", 0)
        assert (result.images, isnan(result.dice), result.rows) == (0, True, [])


@pytest.mark.parametrize(("per", "images"), [("auto", ["v"]), ("image", ["v[0]", "v[1]", "v[2]"])])
def test_slices_of_a_volume_are_stacked_or_scored_one_by_one(per: str, images: list[str]) -> None:
    flat = tiny_site("north", 3)
    tensors, labels = flat.images.batch(torch.arange(3))
    samples = [
        replace(sample, name="v", case="v", slice_index=number, spacing=(1.0, 1.0), slice_spacing=3.0)
        for number, sample in enumerate(flat.images.samples[:3])
    ]
    volume = ImageSet(tensors, labels.to(torch.uint8), torch.ones(3, dtype=torch.bool), samples)
    data = SiteData("north", volume, {"train": torch.arange(3), "val": torch.arange(0), "test": torch.arange(0)})
    workspace = workspace_of(evaluation={"per": per, "metrics": ["dice"]})
    score = score_cases(workspace, data, "train", 0)
    assert list(dict.fromkeys(row["image"] for row in score.rows)) == images
    assert score.images == len(images)


def test_cases_scored_in_several_threads_have_the_same_rows_in_the_same_order() -> None:
    metrics = ["dice", "hd95", "assd"]
    workspace, data = workspace_of(evaluation={"metrics": metrics}), tiny_site("north", 7)
    alone = score_cases(workspace, data, "train", 0)
    engine = workspace.recipe.engine.model_copy(update={"threads": 3})
    workspace.recipe = workspace.recipe.model_copy(update={"engine": engine})  # PyTorch itself keeps one thread
    together = score_cases(workspace, data, "train", 0)
    assert together.images == alone.images == 7
    assert str(together.rows) == str(alone.rows)  # as text, in which NaN equals NaN


def test_a_case_can_be_scored_again_by_one_metric_alone() -> None:
    workspace, data = workspace_of(), tiny_site("north", 5)
    rows = score_cases(workspace, data, "train", 0).rows
    again = [row for case in scored_cases(workspace, data, "train") for row in case_rows(workspace, case, ("asd",))]
    assert again == [row for row in rows if row["metric"] == "asd"]
    assert len(rows) > len(again) == 2 * 5


def regions_of(**evaluation: object) -> Workspace:
    """Of every pixel's probabilities, background has the most and less than both classes of a region together."""
    task = replace(tiny_task(), regions=(("all", (1, 2)), ("core", (2,))))
    workspace = build_workspace(tiny_recipe(evaluation=evaluation), task)
    with torch.no_grad():
        workspace.network.classifier.weight.zero_()
        workspace.network.classifier.bias.copy_(torch.tensor([0.4, 0.3, 0.3]).log())
    return workspace


def test_probabilities_of_a_region_are_summed_by_default() -> None:
    data = tiny_site("north", 3)
    _, labels = data.images.batch(torch.arange(3))
    whole = [(2 * n / (n + 64)) if n else 0.0 for n in (labels > 0).sum((1, 2)).tolist()]
    core = [0.0 if n else 1.0 for n in (labels == 2).sum((1, 2)).tolist()]
    rows = score_cases(regions_of(metrics=["dice"]), data, "train", 0).rows
    assert [row["class"] for row in rows] == ["all", "core"] * 3
    expected = [value for pair in zip(whole, core, strict=True) for value in pair]
    assert [row["value"] for row in rows] == pytest.approx(expected)
    quick = score_quickly(regions_of(), data, "train", 0)
    assert quick.dice == pytest.approx(mean(expected))
    assert not quick.background_only
    by_class = regions_of(metrics=["dice"], regions="argmax")
    values = [row["value"] for row in score_cases(by_class, data, "train", 0).rows if row["class"] == "all"]
    assert values == [0.0 if n else 1.0 for n in (labels > 0).sum((1, 2)).tolist()]
    assert score_quickly(by_class, data, "train", 0).background_only


def test_slices_of_regions_are_stacked_into_volumes() -> None:
    flat = tiny_site("north", 3)
    tensors, labels = flat.images.batch(torch.arange(3))
    samples = [
        replace(sample, name="v", case="v", slice_index=number, spacing=(1.0, 1.0), slice_spacing=3.0)
        for number, sample in enumerate(flat.images.samples[:3])
    ]
    volume = ImageSet(tensors, labels.to(torch.uint8), torch.ones(3, dtype=torch.bool), samples)
    data = SiteData("north", volume, {"train": torch.arange(3), "val": torch.arange(0), "test": torch.arange(0)})
    rows = score_cases(regions_of(metrics=["dice", "hd95"]), data, "train", 0).rows
    found = {(row["class"], row["metric"]): row["value"] for row in rows}
    count = int((labels > 0).sum())
    assert found["all", "dice"] == pytest.approx(2 * count / (count + 3 * 64))
    assert found["core", "dice"] == 0
    assert len(rows) == 4
