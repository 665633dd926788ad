"""A study: the same comparison for several values of a key of the recipe, such as the number of labels, or of two."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.grid import carry_out, check_grid
from polyclinic.runs.grid_plan import GridPlan, folder_name, plan_grid
from polyclinic.runs.grid_progress import GridObserver
from polyclinic.runs.out_folder import refuse_other_use

_ABOUT_LABELS = ("data.labelled", "data.label_seed")  # keys that say nothing where all labels are read


@dataclass(frozen=True)
class StudyPlan:
    """A grid for every value of one key, or for every pair of values of two.

    ``axes`` has the values of each key. ``grids`` are by value, a pair as ``0.1, 5``; ``key`` names both keys the same
    way. ``fixed`` has, by the same values, the grids of methods that the number of labels does not touch: one grid
    stands for all numbers.
    """

    axes: dict[str, tuple[str, ...]]
    methods: tuple[str, ...]
    grids: dict[str, GridPlan]
    fixed: dict[str, GridPlan]
    out: Path

    @property
    def key(self) -> str:
        """The key, or both."""
        return ", ".join(self.axes)

    @property
    def in_order(self) -> list[GridPlan]:
        """The grids that have runs, in the order in which they are done: an early stop leaves whole comparisons.

        What serves several values comes first, as no comparison is whole without it.
        """
        grids = {grid.out: grid for grid in (*self.fixed.values(), *self.grids.values())}
        return [grid for grid in grids.values() if grid.methods]

    def save(self) -> None:
        """Write ``study.json``, from which a report finds the grids; another study's is not overwritten."""
        path = self.out / "study.json"
        if path.exists() and (other := read_json(path)["key"]) != self.key:
            raise PolyclinicError(f"{self.out}: holds a study of {other}; give another folder with --out.")
        fixed = {value: grid.out.name for value, grid in self.fixed.items()}
        about = {
            "key": self.key,
            "methods": self.methods,
            "grids": {value: grid.out.name for value, grid in self.grids.items() if grid.methods},
            "values": list(self.grids),
            # With one key there is one such grid for all values.
            "fixed": (fixed or None) if len(self.axes) > 1 else next(iter(fixed.values()), None),
        }
        write_json(path, about | ({"axes": self.axes} if len(self.axes) > 1 else {}))


def plan_study(
    source: str | Path,
    overrides: tuple[str, ...],
    vary: str | Sequence[str],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    out: Path,
) -> StudyPlan:
    """Check every recipe before anything runs, and lay out the grids."""
    axes = _axes([vary] if isinstance(vary, str) else vary)
    settings = {", ".join(point): _settings(axes, point) for point in product(*axes.values())}
    recipes = {value: load_recipe(source, [*overrides, *pairs]) for value, pairs in settings.items()}
    _refuse_equal(", ".join(axes), recipes)
    first = next(iter(recipes.values()))
    names = plan_grid(first, methods, seeds, out).methods
    load_plugins(first.plugins)
    # With all labels, the budget and its draw say nothing: one run serves every value.
    fixed = tuple(name for name in names if parse_method(name).all_labels) if axes.keys() & {*_ABOUT_LABELS} else ()
    moving = tuple(name for name in names if name not in fixed)
    grids = {
        value: GridPlan(recipe, moving, seeds, out / folder_name(",".join(settings[value])))
        for value, recipe in recipes.items()
    }
    alone: dict[str, GridPlan] = {}
    for value, recipe in recipes.items() if fixed else ():
        rest = [pair for pair in settings[value] if pair.partition("=")[0] not in _ABOUT_LABELS]
        # Without a value in its recipe, it also serves a study that goes on with other values.
        without_budget = with_changes(recipe, dict.fromkeys(_ABOUT_LABELS))
        alone[value] = GridPlan(without_budget, fixed, seeds, out / folder_name(",".join(["all-labels", *rest])))
    return StudyPlan(axes, names, grids, alone, out)


def _axes(vary: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values of each key."""
    if not 1 <= len(vary) <= 2:
        raise PolyclinicError(
            f"--vary: a study varies one or two keys, not {len(vary)}; fix the others with --set, "
            "or start a study for each of their values, with folders of their own."
        )
    axes: dict[str, tuple[str, ...]] = {}
    for text in vary:
        key, values = parse_vary(text)
        if key in axes:
            raise PolyclinicError(f"--vary {text}: {key} is there twice; give all of its values at once.")
        if len(set(values)) < len(values):
            raise PolyclinicError(f"--vary {text}: a value is there twice; give each once.")
        axes[key] = values
    return axes


def _settings(axes: Iterable[str], point: Iterable[str]) -> list[str]:
    """``KEY=VALUE`` for each key."""
    return [f"{key}={value}" for key, value in zip(axes, point, strict=True)]


def parse_vary(text: str) -> tuple[str, tuple[str, ...]]:
    """``data.labelled=5,10,20`` as the key and its values; commas inside brackets do not separate."""
    key, equals, rest = text.partition("=")
    values = tuple(piece.strip() for piece in re.split(r",(?![^\[]*\])", rest) if piece.strip())
    key = key.strip()
    if not equals or not key or not values:
        raise PolyclinicError(f"--vary {text}: expected a key and its values, such as --vary data.labelled=5,10,20.")
    if key in ("method", "seed"):
        raise PolyclinicError(f"--vary {text}: give methods with --methods and seeds with --seeds; vary another key.")
    return key, values


def _refuse_equal(key: str, recipes: dict[str, Recipe]) -> None:
    seen: dict[str, str] = {}
    for value, recipe in recipes.items():
        if other := seen.get(text := recipe.model_dump_json()):
            raise PolyclinicError(f"--vary {key}: '{other}' and '{value}' are the same recipe; give each value once.")
        seen[text] = value


def run_study(
    plan: StudyPlan, metric: str = "dice", jobs: int | None = None, observer: GridObserver | None = None
) -> Generator[GridPlan, None, None]:
    """Run what is missing, all grids at once, and give each grid as soon as all of its runs are done."""
    refuse_other_use(plan.out, "study")
    grids = plan.in_order
    for grid in grids:
        check_grid(grid, metric)
    plan.save()
    for grid in grids:
        grid.save()
    runs = [run for grid in grids for run in grid.runs(f"{grid.out.name} ")]
    missing = {grid.out: len(grid.cells) for grid in grids}
    by_folder = {grid.out: grid for grid in grids}
    with closing(carry_out(runs, jobs, observer)) as finished:
        for run in finished:
            missing[run.grid] -= 1
            if not missing[run.grid]:
                yield by_folder[run.grid]
