"""The check of an export: rounding passes, anything else is counted and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item
from polyclinic.export.check import Check, Expected, compare, expected_predictions
from polyclinic.export.settings import model_settings
from polyclinic.export.standalone.segment import Model
from polyclinic.runs.predict import load_model, predict

Finished = Callable[..., Path]


@pytest.fixture
def case(finished: Finished, tiny_federation: Path, tmp_path: Path) -> tuple[Any, list[Expected], Callable[..., Model]]:
    """The run's network, its predictions of three images, and models around other networks."""
    workspace, federation = load_model(finished(), site=None, part=None, model=None)
    paths = [tiny_federation / "north" / "images" / f"case{number}.png" for number in range(3)]
    expected = expected_predictions(workspace, federation, [Item("s", p.stem, (p,), None, p.stem) for p in paths])
    settings = model_settings(workspace, federation)

    def model(network: Callable[[torch.Tensor], torch.Tensor], **inference: Any) -> Model:
        table = {**settings, "inference": {**settings["inference"], **inference}}
        (tmp_path / "model.json").write_text(json.dumps(table))
        return Model(tmp_path, lambda batch: network(torch.from_numpy(batch)).detach().numpy())

    return workspace.network.eval(), expected, model


def test_what_is_expected_is_what_predict_writes(
    case: Any, finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    from PIL import Image

    written = predict(finished(), tiny_federation / "north", tmp_path / "masks")
    for wanted, path in zip(case[1], written, strict=False):
        np.testing.assert_array_equal(wanted.mask, Image.open(path))


def test_the_same_network_passes(case: Any) -> None:
    network, expected, model = case
    check = compare(model(network), expected, "test")
    assert check.passed
    assert (check.differing, check.pixels, check.images) == (0, 3 * 256, ("s/case0", "s/case1", "s/case2"))
    assert check.largest_difference < 1e-6
    assert check.foreground == sum(int((one.mask > 0).sum()) for one in expected)
    words = f"checked on 3 test images: masks are identical (768 pixels, {check.foreground} not background), largest"
    assert check.sentence().startswith(words)


def test_another_network_is_refused(case: Any) -> None:
    network, expected, model = case
    check = compare(model(lambda images: -network(images)), expected, "synthetic")
    assert not check.passed
    assert check.differing > 0
    assert check.unexplained > 0
    assert "mask pixels differ" in check.sentence()


def test_numbers_that_are_none_are_refused(case: Any) -> None:
    network, expected, model = case
    assert not compare(model(lambda images: network(images) * torch.nan), expected, "test").passed


def test_a_small_change_of_probabilities_that_moves_no_mask_is_refused_too(case: Any) -> None:
    network, expected, model = case
    check = compare(model(lambda images: 1.1 * network(images)), expected, "test")
    assert check.differing == check.unexplained == 0
    assert check.largest_difference > 1e-3
    assert not check.passed


def test_masks_of_another_program_are_compared_too(case: Any) -> None:
    network, expected, model = case
    assert not compare(model(network), expected, "test", lambda wanted: 1 - wanted.mask).passed
    assert compare(model(network), expected, "test", lambda wanted: wanted.mask).passed


def test_pixels_at_a_tie_are_explained_by_rounding() -> None:
    assert Check("test", ("a",), 1e-6, 100, 2, 0).passed
    assert not Check("test", ("a",), 1e-6, 100, 2, 1).passed
    assert not Check("test", ("a",), float("nan"), 100, 0, 0).passed


def test_other_shapes_are_a_fault(case: Any) -> None:
    network, expected, model = case
    wrong = [Expected(one.item, one.probabilities[..., :-1], one.mask) for one in expected]
    with pytest.raises(PolyclinicError, match="sees images of shape"):
        compare(model(network), wrong, "test")
