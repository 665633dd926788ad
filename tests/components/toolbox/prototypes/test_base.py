"""Class means over batches, and what a prototype component must define."""

from __future__ import annotations

import pytest
import torch

from polyclinic.components.base import ComponentSettings, Context
from polyclinic.components.objectives.cdpa import Cdpa
from polyclinic.components.toolbox.prototypes.base import ClassMeans, PrototypeComponent
from support import tiny_task

# Two batches of pixels of two classes; the second batch has none of class 1.
BATCHES = [([[1.0, 3.0], [10.0, 0.0], [3.0, 5.0]], [0, 1, 0]), ([[8.0, 1.0]], [0])]


def collected(by_batch: bool) -> ClassMeans:
    means = ClassMeans(3, 2, torch.device("cpu"), by_batch)
    for rows, labels in BATCHES:
        onehot = torch.nn.functional.one_hot(torch.tensor(labels), 3)
        means.add(onehot.T.float() @ torch.tensor(rows), onehot.sum(0))
    return means


def test_class_means_are_over_all_pixels_or_over_the_means_of_batches() -> None:
    assert collected(False).result().tolist() == [[4.0, 3.0], [10.0, 0.0], [0.0, 0.0]]
    assert collected(True).result().tolist() == [[5.0, 2.5], [10.0, 0.0], [0.0, 0.0]]
    assert collected(True).pixels.tolist() == [3, 1, 0]


def test_a_component_without_weight_views_or_terms_cannot_be_built() -> None:
    class Unfinished(PrototypeComponent):
        name = "unfinished"

    with pytest.raises(TypeError, match="abstract"):
        Unfinished(ComponentSettings(), Context(tiny_task()))  # type: ignore[abstract]


@pytest.mark.parametrize("choice", ["pixels", "batches"])
def test_only_a_setting_makes_means_of_batch_means(choice: str) -> None:
    component = Cdpa(Cdpa.Settings(prototypes=choice), Context(tiny_task()))  # type: ignore[arg-type]
    assert component.averages_batch_means == (choice == "batches")


def test_the_server_clusters_the_means_of_classes_that_are_there() -> None:
    component = Cdpa(Cdpa.Settings(), Context(tiny_task()))
    means = torch.tensor([[[1.0, 0.0], [5.0, 5.0]], [[0.0, 1.0], [0.0, 0.0]]])
    made = component.globalise(means, torch.tensor([[2, 1], [3, 0]]))
    assert made.count == 2
    assert made.vectors[made.classes == 1].tolist() == [[5.0, 5.0]]
    assert made.means[0].tolist() == [0.5, 0.5]
