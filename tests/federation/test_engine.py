"""Every engine has what the server asks of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from polyclinic.engines.flower.engine import FlowerEngine
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.workers import Workers
from polyclinic.federation.engine import Engine

METHODS = sorted(name for name, value in vars(Engine).items() if inspect.isfunction(value) and name[0] != "_")


def shape(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(method).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def test_an_engine_is_asked_for_training_scores_models_memories_on_disk_and_its_end() -> None:
    assert METHODS == ["close", "evaluate", "model", "settle", "started_by", "train"]


@pytest.mark.parametrize("engine", [InProcess, Workers, FlowerEngine])
@pytest.mark.parametrize("name", METHODS)
def test_an_engine_has_the_methods_with_their_parameters_and_results(engine: type, name: str) -> None:
    wanted, method = getattr(Engine, name), getattr(engine, name)
    assert shape(method) == shape(wanted)
    assert inspect.signature(method).return_annotation == inspect.signature(wanted).return_annotation


@pytest.mark.parametrize(("engine", "partial"), [(InProcess, False), (Workers, False), (FlowerEngine, True)])
def test_a_site_may_be_away_at_the_test_only_where_it_is_on_another_machine(engine: Any, partial: bool) -> None:
    assert engine.partial is partial
