"""Recipes as files: read, override, check with helpful sentences, write back resolved."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.wording import first_finding
from polyclinic.recipe import Recipe
from polyclinic.recipe.network import NETWORK_SETTINGS, NetworkSettings, UncheckedSettings, settings_class
from polyclinic.recipe.older_versions import is_of_a_run, with_older_values

_COMMA = re.compile(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)""")  # outside of quotes

_DEEPEST_KEY = 30
_MOST_DOTS = 1000  # of a line; a key of as many parts takes the parser 4 MB


def shipped_recipes() -> dict[str, Path]:
    """Recipes that come with polyclinic, by name; in a checkout they lie beside ``src``."""
    package = Path(__file__).resolve().parent.parent
    folders = [package / "recipes", package.parent.parent / "recipes"]
    return {path.stem: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.toml"))}


def find_recipe(source: str | Path) -> Path:
    """A recipe file, or the shipped recipe of that name."""
    path = Path(source)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if str(source) in shipped:
        return shipped[str(source)]
    hint = suggestion(str(source), shipped) or f"; shipped recipes: {', '.join(shipped)}."
    raise PolyclinicError(f"{source}: neither a recipe file nor the name of a shipped recipe{hint}")


def load_recipe(source: str | Path, overrides: Iterable[str] = (), **replace: Any) -> Recipe:
    """Read and check a recipe. ``overrides`` are ``a.b=c`` texts, ``replace`` sets top-level keys."""
    path = find_recipe(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolyclinicError(f"{path}: not a readable TOML file ({error}); mend that line.") from error
    table = parse_recipe(text, str(path))
    if is_of_a_run(path):
        table = with_older_values(table)
    overrides = list(overrides)
    for text in overrides:
        _override(table, text)
    table |= {key: value for key, value in replace.items() if value is not None}
    origin = f"{path} with --set {' --set '.join(overrides)}" if overrides else str(path)
    beside = path.resolve().parent
    network = table.get("network")
    if isinstance(network, dict) and isinstance(weights := network.get("weights"), str):
        # Before the check, which takes the file's hash.
        table["network"] = {**network, "weights": str(beside / weights)} if (beside / weights).is_file() else network
    return _with_paths(make_recipe(table, origin), beside)


def parse_recipe(text: str, origin: str) -> dict[str, Any]:
    """The table of a recipe's text, not checked yet."""
    refuse_deep_keys(text, origin)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolyclinicError(f"{origin}: not a readable TOML file ({error}); mend that line.") from error


def refuse_deep_keys(text: str, origin: str) -> None:
    """Raise for a text on which a TOML parser would fill the memory, before it is parsed.

    Two limits, because quotes can hide from the first where a key begins, and no key goes on in the next line.
    """
    if deepest_key(text) > _DEEPEST_KEY:
        raise PolyclinicError(f"{origin}: a key has more than {_DEEPEST_KEY} parts with dots between; no key has that.")
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise PolyclinicError(f"{origin}: a line has more than {_MOST_DOTS} dots; write it in several lines.")


def deepest_key(text: str) -> int:
    """The most dots between two signs that end a key; the memory of a TOML parser grows with its square.

    >>> deepest_key('a.b = [0.1, 0.2]')
    1
    """
    most = dots = 0
    quote = ""
    for sign in text:
        if quote:
            quote = "" if sign in (quote, "\n") else quote
        elif sign in "\"'":
            quote = sign
        elif sign in ",=[]{}#\n":
            dots = 0
        elif sign == ".":
            dots += 1
            most = max(most, dots)
    return most


def require_federation(recipe: Recipe, source: str | Path) -> None:
    """Stop where a shipped recipe waits for data that the user must bring, and name the one that needs none."""
    shipped = shipped_recipes()
    if str(source) not in shipped or recipe.federation.startswith("demo:") or Path(recipe.federation).is_dir():
        return
    small = f"{source}-small"
    other = f", or take the recipe {small}, which needs none" if small in shipped else ""
    raise PolyclinicError(
        f"{recipe.federation}: no such folder; {source} needs images of yours, so give the folder that holds one "
        f"folder for each site with --set federation=FOLDER{other}."
    )


def make_recipe(table: Mapping[str, Any], origin: str = "recipe") -> Recipe:
    """Check a table of settings; ``origin`` is named in errors."""
    _refuse_unknown(table, Recipe, origin)
    try:
        return Recipe(**table)
    except ValidationError as error:
        raise PolyclinicError(f"{origin}: {_sentence(error)}") from error


def with_checked_network(recipe: Recipe) -> Recipe:
    """The recipe with its network's keys checked, if the plugin that knows them was not imported before."""
    return recipe.model_copy(update={"network": checked_network(recipe.network)})


def checked_network(settings: NetworkSettings) -> NetworkSettings:
    """The settings as the class of their network has them; left alone while no class is known for the name."""
    if not isinstance(settings, UncheckedSettings) or settings.name not in NETWORK_SETTINGS:
        return settings
    table = settings.model_dump()
    _refuse_unknown_network_keys(table, "recipe")
    try:
        return NETWORK_SETTINGS[settings.name](**table)
    except ValidationError as error:
        raise PolyclinicError(f"recipe: {_sentence(error, 'network')}") from error


def recipe_text(recipe: Recipe) -> str:
    """The resolved recipe as TOML, with every default written out."""
    import tomli_w

    return tomli_w.dumps(_without_none(with_checked_network(recipe).model_dump(mode="json")))


def changed_keys(before: Recipe, after: Recipe) -> list[str]:
    """Keys whose values differ, such as ``training.lr``."""
    first, second = (dict(_leaves(with_checked_network(recipe).model_dump())) for recipe in (before, after))
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _with_paths(recipe: Recipe, beside: Path) -> Recipe:
    """Make paths absolute: what a recipe names lies beside its file, or else in the current folder."""

    def found(text: str) -> str:
        path = Path(text).expanduser()
        here = beside / path
        return str((here if here.exists() else path).resolve())

    changes: dict[str, Any] = {"plugins": tuple(found(p) if p.endswith(".py") else p for p in recipe.plugins)}
    if not recipe.federation.startswith("demo:"):
        changes["federation"] = found(recipe.federation)
    return recipe.model_copy(update=changes)


def _override(table: dict[str, Any], text: str) -> None:
    """Apply one ``--set a.b=c``."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise PolyclinicError(f"--set {text}: expected key=value, such as --set training.rounds=5.")
    *sections, last = key.strip().split(".")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise PolyclinicError(f"--set {text}: '{section}' is a value, not a table; write {section}=...")
        table = inner
    table[last] = parse_value(value.strip())


def parse_value(text: str) -> Any:
    """A TOML value; anything that is not one is taken as a string, inside a list too (``[north, south]``)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        inner = text[1:-1]
        if (text[:1], text[-1:]) != ("[", "]") or "[" in inner or "]" in inner:
            return text
        return [parse_value(piece.strip()) for piece in _COMMA.split(inner) if piece.strip()]


def _refuse_unknown(table: Mapping[str, Any], model: type[BaseModel], origin: str, prefix: str = "") -> None:
    for key, value in table.items():
        if key not in model.model_fields:
            raise _unknown_key(key, list(model.model_fields), origin, prefix)
        inner = model.model_fields[key].annotation
        if not isinstance(inner, type) or not issubclass(inner, BaseModel) or not isinstance(value, Mapping):
            continue
        if issubclass(inner, NetworkSettings):
            _refuse_unknown_network_keys(value, origin)
        else:
            _refuse_unknown(value, inner, origin, f"{prefix}{key}.")


def _refuse_unknown_network_keys(table: Mapping[str, Any], origin: str) -> None:
    """A key of another network is known: its class says what to do about it. An unknown network may have any."""
    chosen = settings_class(table)
    if chosen is UncheckedSettings:
        return
    known = {key for settings in NETWORK_SETTINGS.values() for key in settings.model_fields}
    for key in table:
        if key not in known:
            raise _unknown_key(key, list(chosen.model_fields), origin, "network.")


def _unknown_key(key: str, known: list[str], origin: str, prefix: str) -> PolyclinicError:
    where = f"in [{prefix[:-1]}]" if prefix else "in a recipe"
    hint = suggestion(key, known) or f"; keys {where}: {', '.join(known)}."
    return PolyclinicError(f"{origin}: unknown key '{prefix}{key}'{hint}")


def _sentence(error: ValidationError, section: str = "") -> str:
    """The first problem of a validation, in words; ``section`` is the table that was checked, if it was one alone."""
    finding = first_finding(error, depth=1 if section else 2)
    place = (section, *finding.place) if section else finding.place
    key = ".".join(str(part) for part in place if part in Recipe.model_fields or _is_key(part)) or "recipe"
    if finding.kind == "missing":
        return f"'{key}' is missing; write {key} = ... (a folder, or demo:nuclei for an embedded federation)."
    if finding.kind in ("model_type", "dict_type"):
        return f"{key} = {finding.value!r} is not possible: it is a table; write [{key}] and its keys below."
    if finding.kind == "value_error":
        return f"{key}: {finding.words}."
    return f"{finding.about(key)} is not possible: {finding.words}."


def _is_key(part: object) -> bool:
    sections = [*NETWORK_SETTINGS.values(), *(field.annotation for field in Recipe.model_fields.values())]
    return any(isinstance(s, type) and issubclass(s, BaseModel) and part in s.model_fields for s in sections)


def _without_none(value: Any) -> Any:
    """TOML has no null: an unset key is left out."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
