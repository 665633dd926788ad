from __future__ import annotations

import torch

from polyclinic.components.toolbox.foreground import foreground, mean_over_foreground


def test_of_two_classes_the_foreground_is_a_sigmoid() -> None:
    logits, labels = torch.randn(2, 2, 3, 4, 2), torch.randint(2, (2, 3, 4, 2))
    probabilities, truth = foreground(logits.bfloat16(), labels)
    wanted = (logits[:, 1] - logits[:, 0]).bfloat16().float().sigmoid()
    torch.testing.assert_close(probabilities[:, 0], wanted, rtol=0.02, atol=0.02)
    assert (probabilities.dtype, truth.dtype) == (torch.float32, torch.float32)
    assert torch.equal(truth[:, 0], labels.float())


def test_of_several_classes_all_but_the_background() -> None:
    labels = torch.tensor([[[0, 1], [2, 2]]])
    probabilities, truth = foreground(torch.zeros(1, 3, 2, 2), labels)
    torch.testing.assert_close(probabilities, torch.full((1, 2, 2, 2), 1 / 3))
    assert truth.tolist() == [[[[0, 1], [0, 0]], [[0, 0], [1, 1]]]]


def test_absent_classes_count_or_not() -> None:
    losses, truth = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 5.0], [0.0, 0.0]])
    assert mean_over_foreground(losses, truth, "count") == 2.5
    assert mean_over_foreground(losses, truth, "ignore") == 3
    assert mean_over_foreground(losses, torch.zeros(2, 2), "ignore") == 0


def test_a_batch_as_one_image_holds_every_pixel_once() -> None:
    logits, labels = torch.randn(3, 4, 2, 5), torch.randint(4, (3, 2, 5))
    probabilities, masks = foreground(logits, labels, "batch")
    assert probabilities.shape == masks.shape == (1, 3, 30)
    for name in (1, 2, 3):
        torch.testing.assert_close(probabilities[0, name - 1], logits.softmax(1)[:, name].flatten())
        assert masks[0, name - 1].equal((labels == name).flatten().float())
