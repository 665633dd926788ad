"""An ablation: every subset of a method's components as a grid of runs, in which runs that are there are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from polyclinic.components.registry import find_component
from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.files import read_json, write_json
from polyclinic.methods.expression import parse_method, same_method
from polyclinic.methods.registry import Method, load_plugins
from polyclinic.recipe import Recipe
from polyclinic.runs.grid import carry_out, check_grid
from polyclinic.runs.grid_finished import is_finished
from polyclinic.runs.grid_plan import GridPlan, plan_grid
from polyclinic.runs.grid_progress import GridObserver
from polyclinic.runs.out_folder import refuse_other_use

MOST_ROWS = 32
"""Subsets of all components of a method; more must be asked for, by naming the components."""
MOST_NAMED_ROWS = 256
_PLAIN_MEAN = "weighted_mean"  # what aggregates where nothing else does, so it cannot be left out


@dataclass(frozen=True)
class AblationPlan:
    """``kept`` has a row for every subset: the method expression, and the components that it keeps, the base first.

    ``earlier`` are methods that the folder lists already; they keep their places, the reference the first one.
    """

    method: str
    components: tuple[str, ...]
    kept: dict[str, tuple[str, ...]]
    grid: GridPlan
    earlier: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        """The folder of the grid."""
        return self.grid.out

    @property
    def listed(self) -> GridPlan:
        """The grid as the folder lists it: what is there, then further rows."""
        methods = dict.fromkeys((*self.earlier, *self.grid.methods))
        return GridPlan(self.grid.recipe, tuple(methods), self.grid.seeds, self.out)

    def save(self) -> None:
        """Write ``ablation.json`` and ``grid.json``, from which a report finds the runs."""
        path = self.out / "ablation.json"
        if path.exists() and (other := read_json(path)["method"]) != self.method:
            raise PolyclinicError(f"{self.out}: holds an ablation of {other}; give another folder with --out.")
        self.listed.save()
        rows = [{"method": method, "components": kept} for method, kept in self.kept.items()]
        write_json(path, {"method": self.method, "components": self.components, "rows": rows})


def plan_ablation(
    recipe: Recipe, method: str, components: Sequence[str] | None, seeds: tuple[int, ...], out: Path
) -> AblationPlan:
    """Every subset of the method's components, or of those that are named, as a grid in ``out``."""
    load_plugins(recipe.plugins)
    whole = parse_method(method)
    columns = _columns(whole, components)
    there, earlier_seeds = _listed_in(out)
    kept = {_row(whole, columns, rest, there): rest for rest in _subsets(columns)}
    grid = plan_grid(recipe, tuple(kept), seeds, out)
    others = [name for name in there if name not in kept]
    if others and not set(earlier_seeds) <= set(seeds):
        raise PolyclinicError(
            f"{out}: holds a comparison of seeds {', '.join(map(str, earlier_seeds))}, which would lose some; "
            f"give --seeds {','.join(map(str, earlier_seeds))}, or another folder with --out."
        )
    return AblationPlan(whole.name, columns, kept, grid, there)


def run_ablation(
    plan: AblationPlan, metric: str = "dice", jobs: int | None = None, observer: GridObserver | None = None
) -> None:
    """Run what is missing."""
    refuse_other_use(plan.out, "comparison")
    check_grid(plan.grid, metric)
    for run in plan.listed.runs():
        is_finished(run)  # raises where the folder holds runs of another recipe, which one table must not mix
    plan.save()
    with closing(carry_out(plan.grid.runs(), jobs, observer)) as finished:
        for _ in finished:
            pass


def _columns(method: Method, named: Sequence[str] | None) -> tuple[str, ...]:
    """The components that are left out, what aggregates last."""
    own = [part.component for part in method.parts if part.component != _PLAIN_MEAN]
    own.sort(key=lambda name: find_component(name).aggregates)
    if not own:
        raise PolyclinicError(
            f"--method {method.name}: it consists of {_PLAIN_MEAN}, and nothing of it can be left out; "
            "give a method with components, such as pathfl."
        )
    if named is None:
        if 2 ** len(own) > MOST_ROWS:
            raise PolyclinicError(
                f"--method {method.name}: its {len(own)} components have {2 ** len(own)} subsets; "
                f"name at most 5 with --components, from {', '.join(own)}."
            )
        return tuple(own)
    for name in named:
        if name not in own:
            raise PolyclinicError(
                f"--components: '{name}' cannot be left out of {method.name}{suggestion(name, own) or '.'} "
                f"These can: {', '.join(own)}."
            )
    if not named or len(set(named)) < len(named):
        raise PolyclinicError("--components: name at least one component, and each once, such as cse,afa.")
    if 2 ** len(named) > MOST_NAMED_ROWS:
        raise PolyclinicError(
            f"--components: {len(named)} components have {2 ** len(named)} subsets, the most are {MOST_NAMED_ROWS}; "
            "name fewer."
        )
    return tuple(named)


def _subsets(columns: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """From none of them to all, as papers order the rows."""
    return (rest for size in range(len(columns) + 1) for rest in combinations(columns, size))


def _row(whole: Method, columns: tuple[str, ...], rest: tuple[str, ...], there: tuple[str, ...]) -> str:
    """The expression of a row: one that the folder has a run of, else a short name, else the method without the others.

    So a row that is FedAvg is not trained a second time beside a run of ``fedavg``.
    """
    dropped = [name for name in columns if name not in rest]
    minus = "".join(f"-{name}" for name in dropped)
    plus = "".join(f"+{whole.instead[name]}" for name in dropped if name in whole.instead)
    expression = whole.name + minus + plus
    if not dropped or expression in there:
        return expression
    method = parse_method(expression)
    first = re.split(r"\W", whole.name, maxsplit=1)[0]
    for name in (*there, "fedavg", first, whole.extends or "", *whole.instead.values()):
        known = _known(name)
        if known is not None and same_method(known, method):
            return name
    return expression


def _known(expression: str) -> Method | None:
    """The method of an expression, or nothing: a folder may list methods of a plugin that is not here."""
    try:
        return parse_method(expression)
    except PolyclinicError:
        return None


def _listed_in(out: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The methods and the seeds of a grid that is in the folder already."""
    path = out / "grid.json"
    grid = read_json(path) if path.exists() else {"methods": (), "seeds": ()}
    return tuple(grid["methods"]), tuple(grid["seeds"])


def split_components(text: str) -> tuple[str, ...]:
    """``cse, afa`` as names."""
    return tuple(name for name in re.split(r"[,\s]+", text) if name)
