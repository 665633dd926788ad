"""Advice as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from rich.console import Console

from polyclinic.core.wording import counted, readable_bytes
from polyclinic.preview.advice import Advice
from polyclinic.preview.advice_cost import MethodCost
from polyclinic.preview.advice_methods import Measured, MethodAdvice
from polyclinic.preview.evidence import named_settings

_COSTS_PAGE = "benchmarks/methods_cost.md"
_SETS = "\xa0=\xa0"  # no place to wrap at
_SLOWER = 1.15  # of the FLOPs: what they do not count takes time, too


def print_advice(console: Console, name: str, advice: Advice, costs: Mapping[str, MethodCost]) -> None:
    """Traits, settings, methods and notes."""
    for line in _traits(name, advice):
        _print(console, line, hang=12)
    console.print("\n[bold]Settings[/bold]" + ("" if advice.settings else ": the defaults"))
    for setting in advice.settings:
        _print(console, f"{setting.key} = {setting.value}")
        _print(console, setting.reason, indent=4, hang=4)
    console.print("\n[bold]Methods[/bold]")
    _print(console, f"{advice.basis}.")
    for line in _other_settings(advice):
        _print(console, line, hang=4)
    for one in advice.methods:
        console.print(one.method, style="bold", markup=False, soft_wrap=True)
        for line in _about(one, costs[one.method], advice):
            _print(console, line, indent=4, hang=6)
    if advice.ceiling:
        console.print("central", style="bold")
        _print(console, "for orientation only: all images in one place, so images leave the sites", indent=4, hang=6)
        for measured in _shown(advice.ceiling):
            _print(console, _measurement(measured), indent=4, hang=6)
    for note in advice.notes:
        _print(console, f"Mind: {note}.", hang=6)


def print_way_on(console: Console, written: str, command: str, about: str) -> None:
    """The recipe and the comparison, on lines of their own that can be copied, and what is to know about them."""
    console.print(f"\n{written}\nThen: {command}", markup=False, soft_wrap=True)
    _print(console, f"{about}.")
    _print(
        console,
        "Bytes are those of training, for one site; a validation sends the weights down once more. What each tensor "
        "is: polyclinic explain METHOD --recipe RECIPE.",
    )


def _print(console: Console, text: str, indent: int = 0, hang: int = 0) -> None:
    """A line, wrapped at words; commands, expressions and settings stay whole."""
    lines = textwrap.wrap(
        text.replace(" = ", _SETS), max(40, console.width), initial_indent=" " * indent, subsequent_indent=" " * hang,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    console.print("\n".join(lines).replace(_SETS, " = "), markup=False, soft_wrap=True)


def _traits(name: str, advice: Advice) -> Iterator[str]:
    traits = advice.traits
    fewest, most = traits.smallest_site, traits.largest_site
    sizes = counted(most, "image") if fewest == most else f"{fewest} to {most} images"
    each = " each" if fewest == most and traits.sites > 1 else ""
    labels = f"{traits.labelled:.0%} labelled"
    if advice.labelled is not None:
        labels = f"{counted(advice.labelled, 'label')} a site for training"
    yield f"{name}: {counted(traits.sites, 'site')} of {sizes}{each}, {traits.dims}D, {labels}"
    if traits.width is not None and traits.foreground is not None:
        where = ""
        if traits.middle and traits.size and traits.middle != traits.size:
            where = f", in the middle {_by(traits.middle)} of {_by(traits.size)}"
        size = f"about {traits.width:.0f} pixels wide, {traits.foreground:.1%} of an image{where}"
        yield f"structures  {'thin' if traits.is_thin else 'bulky'}: {size}"
        yield f"polarity    {traits.polarity}"
    if traits.shift is not None:
        size = f"{traits.shift:.2f} times the differences between images of one site"
        yield f"shift       {traits.shift_word}: {size}"


def _by(numbers: tuple[int, ...]) -> str:
    return " x ".join(map(str, numbers))


def _other_settings(advice: Advice) -> Iterator[str]:
    """Of each federation that numbers are of: what its table had that the recipe has not."""
    measured = [m for one in advice.methods for m in _shown(one.measured)]
    found = {m.table.federation: m.differs for m in (*measured, *_shown(advice.ceiling)) if not m.apart}
    for federation, differs in found.items():
        nearest = advice.nearest is not None and federation == advice.nearest.federation
        if differs and (nearest or any(m.alike for m in measured if m.table.federation == federation)):
            yield f"{federation} was measured with {named_settings(differs)}."


def _about(one: MethodAdvice, cost: MethodCost, advice: Advice) -> Iterator[str]:
    """All that is known of a method, a line each."""
    yield one.reason
    if one.left_out:
        yield f"left out of the command: {one.left_out}"
    if not one.measured and advice.nearest is not None:
        yield "not measured"
    yield from map(_measurement, _shown(one.measured))
    up, down = readable_bytes(cost.bytes_up), readable_bytes(cost.bytes_down)
    yield f"leaves a site: {cost.leaves_briefly}" + (f"; {up} up, {down} down a round" if cost.bytes_up else "")
    reference = advice.methods[0].method
    if one.method != reference:
        time = ""
        if one.cost is not None and one.cost > _SLOWER * cost.work:
            time = f" ({one.cost:.2f} of FedAvg's time on pictures of 64 x 64, {_COSTS_PAGE})"
        yield f"work of a round at the sites: {cost.work:.2f} of {reference}'s FLOPs{time}"


def _shown(measured: tuple[Measured, ...]) -> tuple[Measured, ...]:
    """Measurements on federations that are alike; without any the nearest one."""
    return tuple(one for one in measured if one.alike) or measured[:1]


def _measurement(measured: Measured) -> str:
    table, row = measured.table, measured.row
    result = ", the reference of this table"
    if row.against:
        reference = "" if measured.reference_dice is None else f" with {measured.reference_dice:.1f}"
        result = f", {row.against} against {table.reference}{reference}: {row.verdict}"
    other = f"{named_settings(measured.apart)}, " if measured.apart else ""
    unlike = "" if measured.alike else "another kind of federation, "
    source = f"{counted(table.seeds, 'seed')}, {other}{unlike}{table.page}"
    return f"{table.federation}: {row.dice:.1f} Dice{result} ({source})"
