"""Method expressions: ``pathfl``, ``pathfl-ssa``, ``fedavg+proximal(mu=0.1)``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from polyclinic.components.registry import components, find_component
from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.methods.registry import Method, Part, find_method, methods, validated, with_parts
from polyclinic.recipe.files import parse_value

_LONGEST = 2000  # characters: the time for reading an expression grows with the square of its length
_TERM = re.compile(r"\s*(?P<sign>[+-]?)\s*(?P<name>[A-Za-z][A-Za-z0-9_]*)\s*(?:\((?P<settings>[^()]*)\))?\s*")


def parse_method(expression: str) -> Method:
    """Build the method of an expression: a method's name, then ``+component`` or ``-component``, each with settings."""
    if len(expression) > _LONGEST:
        raise PolyclinicError(
            f"method: an expression of {len(expression)} characters is not read, the most are {_LONGEST}; shorten it."
        )
    terms = _terms(expression)
    _, name, settings = terms[0]
    whole = find_method(name)
    method = _with_settings(whole, settings)
    for sign, name, settings in terms[1:]:
        method = _minus(method, name, expression) if sign == "-" else _plus(method, Part(name, settings))
    _refuse_two_aggregators(terms, expression)
    for wanted in method.parts:
        validated(wanted)
    return replace(_described(method, whole), name=re.sub(r"\s+", "", expression))


def same_method(first: Method, second: Method) -> bool:
    """Whether two methods differ in nothing but their names, so that a run of one is a run of the other."""
    return _contents(first) == _contents(second)


def _contents(method: Method) -> object:
    # In their order: components that change images, say, do it one after another.
    parts = [(part.component, validated(part).model_dump()) for part in method.parts]
    return method.pooled, method.all_labels, parts


def settled_parts(method: Method) -> list[dict[str, Any]]:
    """The components of a method with all of their settings, as data that JSON can hold."""
    return [{"component": part.component, "settings": validated(part).model_dump(mode="json")} for part in method.parts]


def _described(method: Method, whole: Method) -> Method:
    """A method with other components is not what the summary and the paper of the whole one speak of."""
    had, has = ([p.component for p in one.parts] for one in (whole, method))
    changes = {
        "without": [name for name in had if name not in has],
        "with": [name for name in has if name not in had],
    }
    if not any(changes.values()):
        return method
    said = " and ".join(f"{word} {', '.join(names)}" for word, names in changes.items() if names)
    paper = f"{whole.name}: {whole.paper}" if whole.paper else ""
    return replace(method, summary=f"{whole.name} {said}.", paper=paper)


def _terms(expression: str) -> list[tuple[str, str, dict[str, Any]]]:
    terms: list[tuple[str, str, dict[str, Any]]] = []
    position = 0
    while position < len(expression):
        match = _TERM.match(expression, position)
        if match is None or bool(match["sign"]) == (not terms):
            raise PolyclinicError(
                f"method = '{expression}': cannot read '{expression[position:]}'; write a method and then components, "
                "such as fedavg+proximal(mu=0.1) or fedprox-proximal."
            )
        terms.append((match["sign"], match["name"], _settings(match["settings"] or "", expression)))
        position = match.end()
    if not terms:
        raise PolyclinicError("method = '': the name of a method is expected; `polyclinic methods` lists them.")
    return terms


def _settings(text: str, expression: str) -> dict[str, Any]:
    """Read ``a=1, b="x", c=word, d=[word, word]``; a bare word is a string."""
    pairs: dict[str, Any] = {}
    for piece in filter(None, (piece.strip() for piece in re.split(r",(?![^\[]*\])", text))):
        key, equals, value = piece.partition("=")
        if not equals or not key.strip():
            raise PolyclinicError(f"method = '{expression}': '{piece}' is not a setting; write name=value.")
        if key.strip() in pairs:
            raise PolyclinicError(f"method = '{expression}': '{key.strip()}' is there twice; give it one value.")
        pairs[key.strip()] = parse_value(value.strip())
    return pairs


def _with_settings(method: Method, settings: dict[str, Any]) -> Method:
    """Give each setting to the one component of the method that has it."""
    parts = list(method.parts)
    for key, value in settings.items():
        owners = [i for i, p in enumerate(parts) if key in find_component(p.component).Settings.model_fields]
        if len(owners) > 1:
            having = " and ".join(parts[i].component for i in owners)
            raise PolyclinicError(
                f"{method.name}({key}=...): '{key}' belongs to {having}; "
                f"write {method.name}+{parts[owners[0]].component}({key}=...) instead."
            )
        if not owners:
            known = sorted({k for p in parts for k in find_component(p.component).Settings.model_fields})
            raise PolyclinicError(
                f"{method.name}({key}=...): '{key}' is not one of its settings{suggestion(key, known) or '.'} "
                f"Its settings: {', '.join(known) or 'none'}; those of another component go with it, "
                f"+component({key}=...)."
            )
        old = parts[owners[0]]
        parts[owners[0]] = Part(old.component, {**old.settings, key: value})
    return with_parts(method, parts)


def _plus(method: Method, new: Part) -> Method:
    """Add a component, or give new settings to one that is already there."""
    if new.component in methods() and new.component not in components():
        held = "+".join(p.component for p in find_method(new.component).parts[1:]) or "nothing but its aggregation"
        raise PolyclinicError(f"'{new.component}' is a method, and + adds a component; it consists of {held}.")
    find_component(new.component)
    if any(p.component == new.component for p in method.parts):
        return with_parts(
            method,
            [
                Part(p.component, {**p.settings, **new.settings}) if p.component == new.component else p
                for p in method.parts
            ],
        )
    return with_parts(method, [*method.parts, new])


def _refuse_two_aggregators(terms: list[tuple[str, str, dict[str, Any]]], expression: str) -> None:
    """One that is added takes the place of the method's own; of two the first would be lost without a word."""
    added: dict[str, None] = {}
    for sign, name, _ in terms[1:]:
        if sign == "-":
            added.pop(name, None)
        elif find_component(name).aggregates:
            added[name] = None
    if len(added) > 1:
        raise PolyclinicError(
            f"method = '{expression}': {' and '.join(added)} would each aggregate, and one component does; name one."
        )


def _minus(method: Method, name: str, expression: str) -> Method:
    """Drop a component."""
    if not any(p.component == name for p in method.parts):
        held = ", ".join(p.component for p in method.parts)
        known = "a component of another method" if name in components() else "not a component"
        raise PolyclinicError(f"method = '{expression}': '{name}' is {known}; {method.name} consists of {held}.")
    return with_parts(method, [p for p in method.parts if p.component != name])
