"""Pages of the documentation that are made from the code, so that they cannot be wrong.

``python -m polyclinic.report.reference`` writes them into ``docs/reference/``; a test fails when they are stale.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from polyclinic.recipe import Recipe
from polyclinic.recipe.network import NETWORK_SETTINGS, NetworkSettings
from polyclinic.report.methods import component_rows, method_rows

# A method has a page of its own name, except these.
METHOD_PAGES = {
    "local": "references",
    "central": "references",
    "fl_lower": "bounds",
    "fl_upper": "bounds",
}
# A component is explained with the method it was published in, except these, which go with any method.
_ROBUST = "../explanation/robust-aggregation.md"
COMPONENT_PAGES = {
    "weighted_mean": "methods/fedavg.md",
    "randconv": "methods/domain-generalisation.md",
    "lddg": "methods/domain-generalisation.md",
    "privacy": "../explanation/privacy.md",
    "median": _ROBUST,
    "trimmed_mean": _ROBUST,
    "krum": _ROBUST,
    "norm_clipping": _ROBUST,
}


def recipe_page() -> str:
    """Every key of a recipe with its default and its values."""
    lines = [
        "# The recipe",
        "",
        "Made by `python -m polyclinic.report.reference`. Only `federation` must be there; any key can be overridden",
        "with `--set section.key=value`, lists too (`--set data.sites=[a,b]`). The run folder's `recipe.toml` has",
        "every key written out.",
        "",
    ]
    tables = [(name, f.annotation) for name, f in Recipe.model_fields.items() if _is_section(f.annotation)]
    for name, section in [("", Recipe), *tables]:
        lines += _section_table(name, section)  # type: ignore[arg-type]
        if section is NetworkSettings:
            for network, settings in NETWORK_SETTINGS.items():
                lines += _section_table(name, settings, f'network.name = "{network}"')
    return "\n".join(lines)


def methods_page() -> str:
    """Every method and component, each with a link to the page that explains it."""
    lines = ["# Methods", "", "Made by `python -m polyclinic.report.reference`.", ""]
    lines += ["| method | what it does | components | paper |", "|---|---|---|---|"]
    lines += [_method_line(row) for row in method_rows()]
    lines += [
        "",
        "## Components",
        "",
        "| component | level | what it does | settings | equations |",
        "|---|---|---|---|---|",
    ]
    published = {part["component"]: row["method"] for row in method_rows() for part in row["components"]}
    for row in component_rows():
        method = published.get(row["component"])
        page = COMPONENT_PAGES.get(row["component"], method and method_page(method))
        lines.append(_component_line(row, page))
    lines += [
        "",
        "A method expression adds and drops components: `fedavg+proximal(mu=0.1)`, `fedprox-proximal`,",
        "`fedbn(unseen=average)`. Adding a component that aggregates replaces the method's own, and two are",
        "refused; dropping it brings back the weighted mean. Lists take words without quotes:",
        "`fedbcs(taps=[encoder1,encoder2],levels=[0,1])`.",
        "`polyclinic explain EXPRESSION` prints what leaves a site. `median`, `trimmed_mean`, `krum` and",
        f"`norm_clipping` are for sites that may send anything: [robust aggregation]({_ROBUST}).",
        "",
    ]
    return "\n".join(lines)


def _method_line(row: dict[str, Any]) -> str:
    paper = " ".join(str(part) for part in (row["paper"], row["year"]) if part)
    name = f"[`{row['method']}`]({method_page(row['method'])})"
    return f"| {name} | {row['summary']} | `{row['expression']}` | {paper} |"


def _component_line(row: dict[str, Any], page: str | None) -> str:
    name = f"[`{row['component']}`]({page})" if page else f"`{row['component']}`"
    settings = ", ".join(f"`{s['name']} = {s['default']}`" for s in row["settings"])
    return f"| {name} | {row['level']} | {row['summary']} | {settings} | {_cell('; '.join(row['equations']))} |"


def method_page(name: str) -> str:
    """The page that explains a method, relative to ``docs/reference/``."""
    return f"methods/{METHOD_PAGES.get(name, name)}.md"


def _section_table(name: str, section: type[BaseModel], only_with: str = "") -> list[str]:
    """The keys of a table; ``only_with`` stands over those that it has for one network alone."""
    about = "" if name == "" else f" {(section.__doc__ or '').strip().splitlines()[0]}"
    heading = f"### {only_with}" if only_with else f"## [{name}]" if name else "## Top level"
    lines = [heading, *([about.strip()] if about else []), ""]
    lines += ["| key | default | values | |", "|---|---|---|---|"]
    for key, field in section.model_fields.items():
        if _is_section(field.annotation) or (only_with and key == "name"):
            continue
        default = "" if field.is_required() else f"`{_plain(field.default)}`"
        limits = [limit for constraint in field.metadata for limit in _limits(constraint)]
        values = " ".join([_values(field.annotation), *limits])
        lines.append(f"| `{key}` | {default} | {_cell(values)} | {_cell(field.description or '')} |")
    return [*lines, ""]


def _values(kind: Any) -> str:
    """A type as a reader of TOML would say it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{_plain(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_values(choice) for choice in arguments if choice is not type(None))
    if origin is Annotated:
        limits = [limit for constraint in arguments[1:] for limit in _limits(constraint)]
        return " ".join([_values(arguments[0]), *limits])
    if origin is tuple:
        entries = dict.fromkeys(_values(entry) for entry in arguments if entry is not Ellipsis)
        return f"list of {' or '.join(entries)}"
    names = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}
    return names.get(kind, str(kind))


def _limits(constraint: Any) -> list[str]:
    """Limits of a number, from pydantic's constraints."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return [
        f"{sign} {getattr(bound, key)}"
        for bound in [constraint, *getattr(constraint, "metadata", [])]
        for key, sign in signs.items()
        if getattr(bound, key, None) is not None
    ]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_plain(entry) for entry in value)}]"
    return "unset" if value is None else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


PAGES = {"recipe.md": recipe_page, "methods.md": methods_page}


def write_pages(folder: Path) -> None:
    """Write all pages into ``folder``, the one that the links in them are relative to."""
    for name, make in PAGES.items():
        (folder / name).write_text(re.sub(r"\n{3,}", "\n\n", make()), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path("docs/reference"))
