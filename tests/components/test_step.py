"""A step: its parts, and what is made once in it although the losses are computed twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyclinic.components.base import Component
from polyclinic.components.step import Step
from polyclinic.networks.base import Features
from support import tiny_recipe, tiny_server
from temporary_components import known


def a_step(labelled: int = 2, unlabelled: int = 3) -> Step:
    images, labels = torch.rand(labelled, 1, 4, 4), torch.zeros(labelled, 4, 4)
    step = Step(None, None, images, labels, torch.Generator(), 0, 0, 0, True, 0.0, 0.1)  # type: ignore[arg-type]
    if unlabelled:
        step.weak, step.strong = torch.rand(unlabelled, 1, 4, 4), torch.rand(unlabelled, 1, 4, 4)
    return step


def test_labelled_images_come_before_the_strong_view() -> None:
    step = a_step()
    assert torch.equal(step.inputs, torch.cat([step.images, step.strong]))  # type: ignore[list-item]
    maps = torch.arange(5.0)[:, None, None, None].expand(5, 2, 4, 4)
    step.output = Features([maps], [maps], maps)
    assert step.labelled.logits[:, 0, 0, 0].tolist() == [0, 1]
    assert step.unlabelled.decoder[0][:, 0, 0, 0].tolist() == [2, 3, 4]
    alone = a_step(unlabelled=0)
    assert alone.inputs is alone.images


def test_a_value_is_made_at_the_first_call_of_a_step_and_by_key() -> None:
    step, calls = a_step(), []

    def make(value: str) -> str | None:
        calls.append(value)
        return value or None

    assert [step.once("a/x", lambda: make("first")), step.once("a/x", lambda: make("second"))] == ["first", "first"]
    assert step.once("b/x", lambda: make("other")) == "other"
    assert [step.once("a/nothing", lambda: make("")) for _ in range(2)] == [None, None]
    assert calls == ["first", "other", ""]
    assert a_step().once("a/x", lambda: make("next step")) == "next step"


def test_what_fails_is_made_again() -> None:
    step = a_step()
    with pytest.raises(ZeroDivisionError):
        step.once("a/x", lambda: 1 // 0)
    assert step.once("a/x", lambda: 2) == 2


class Drawing(Component):
    """Draws and collects in its loss."""

    name = "drawing"
    level = "objective"
    drawn: list[tuple[int, Tensor]] = []  # noqa: RUF012
    collected: list[int] = []  # noqa: RUF012

    def loss(self, step: Step) -> dict[str, Tensor]:
        value = step.once("drawing/number", lambda: torch.rand((), generator=step.generator))
        step.once("drawing/collected", lambda: self.collected.append(step.site.steps))
        self.drawn.append((step.site.steps, value))
        return {"drawing": 0 * step.output.logits.sum() + value}


def test_a_recomputed_pass_sees_the_same_value_and_collects_nothing(tmp_path: Path) -> None:
    with known(Drawing):
        server = tiny_server(tmp_path, tiny_recipe("fedavg+drawing+weight_perturbation"), sizes={"north": 4})
        server.round()
    steps = len(Drawing.collected)
    assert Drawing.collected == list(range(steps))
    assert [number for number, _ in Drawing.drawn] == [number for number in range(steps) for _ in range(2)]
    for (_, first), (_, again) in zip(Drawing.drawn[::2], Drawing.drawn[1::2], strict=True):
        assert first is again
    assert len({float(value) for _, value in Drawing.drawn}) == steps
