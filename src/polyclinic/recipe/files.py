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

_COMMA = re.compile(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)""")  # outside of quotes


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
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolyclinicError(f"{origin}: not a readable TOML file ({error}); mend that line.") from error


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


def recipe_text(recipe: Recipe) -> str:
    """The resolved recipe as TOML, with every default written out."""
    import tomli_w

    return tomli_w.dumps(_without_none(recipe.model_dump(mode="json")))


def changed_keys(one: Recipe, other: Recipe) -> list[str]:
    """Keys whose values differ, such as ``training.lr``."""
    first, second = dict(_leaves(one.model_dump())), dict(_leaves(other.model_dump()))
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
            where = f"in [{prefix[:-1]}]" if prefix else "in a recipe"
            hint = suggestion(key, model.model_fields) or f"; keys {where}: {', '.join(model.model_fields)}."
            raise PolyclinicError(f"{origin}: unknown key '{prefix}{key}'{hint}")
        inner = model.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, Mapping):
            _refuse_unknown(value, inner, origin, f"{prefix}{key}.")


def _sentence(error: ValidationError) -> str:
    """The first problem of a validation, in words."""
    found = first_finding(error, depth=2)
    key = ".".join(str(part) for part in found.place if part in Recipe.model_fields or _is_key(part)) or "recipe"
    if found.kind == "missing":
        return f"'{key}' is missing; write {key} = ... (a folder, or demo:nuclei for an embedded federation)."
    if found.kind in ("model_type", "dict_type"):
        return f"{key} = {found.value!r} is not possible: it is a table; write [{key}] and its keys below."
    if found.kind == "value_error":
        return f"{key}: {found.words}."
    return f"{found.about(key)} is not possible: {found.words}."


def _is_key(part: object) -> bool:
    sections = [field.annotation for field in Recipe.model_fields.values()]
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
