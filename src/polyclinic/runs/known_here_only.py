"""What a program registered itself, such as a method or a metric, and no other process knows.

A notebook may register a method in one cell and compare it in the next. What the recipe's ``plugins`` bring is known
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from polyclinic.components.registry import find_component
from polyclinic.data.formats.registry import FORMATS
from polyclinic.engines.registry import find_engine
from polyclinic.evaluation.metric_registry import find_metric
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import module_of
from polyclinic.networks.registry import NETWORKS
from polyclinic.recipe import Recipe

_PLUGIN_FILE = "polyclinic_plugin_"  # how modules of plugin files are called


def known_here_only(recipe: Recipe, methods: Iterable[str]) -> str | None:
    """What a grid uses that only this process knows, such as "the method 'mine'"; ``None`` if there is nothing."""
    known = ("polyclinic", *recipe.plugins)
    for what, module in _used(recipe, methods):
        elsewhere = any(module == name or module.startswith(f"{name}.") for name in known)
        if not elsewhere and not module.startswith(_PLUGIN_FILE):
            return what
    return None


def _used(recipe: Recipe, methods: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Everything by name, with the module that registered it."""
    for expression in methods:
        (name,) = re.findall(r"^\s*(\w+)", expression)
        yield f"the method '{name}'", module_of(name)
        for part in parse_method(expression).parts:
            yield f"the component '{part.component}'", find_component(part.component).__module__
    if recipe.network.name in NETWORKS:
        yield f"the network '{recipe.network.name}'", _module(NETWORKS[recipe.network.name])
    for name in recipe.evaluation.metrics:
        yield f"the metric '{name}'", _module(find_metric(name).measure)
    yield f"the engine '{recipe.engine.name}'", find_engine(recipe.engine.name).source
    for suffix, entry in FORMATS.items():
        yield f"the format '{suffix}'", _module(entry.read_header)


def _module(function: Callable[..., object]) -> str:
    while isinstance(function, partial):
        function = function.func
    return function.__module__
