"""The plan of a grid: which recipe runs where. Plain data, so that it can be read before anything heavy starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    method: str
    seed: int
    folder: Path


@dataclass(frozen=True, eq=False)
class GridRun:
    """A cell with its recipe, and the name that people read; ``grid`` is the folder of its grid."""

    title: str
    method: str
    folder: Path
    recipe: Recipe
    grid: Path

    @property
    def log(self) -> Path:
        """What the run writes while it goes on, and why it failed."""
        return self.folder / "output.log"


@dataclass(frozen=True)
class GridPlan:
    """Methods in the order of the table, seeds, and the folder that holds a run folder for each pair."""

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    out: Path

    @property
    def cells(self) -> list[Cell]:
        """All runs, a seed at a time, so that an early stop leaves whole comparisons."""
        return [
            Cell(method, seed, self.out / f"{folder_name(method)}-seed{seed}")
            for seed in self.seeds
            for method in self.methods
        ]

    def recipe_of(self, cell: Cell) -> Recipe:
        """The recipe of one run."""
        return with_changes(self.recipe, {"method": cell.method, "seed": cell.seed})

    def runs(self, prefix: str = "") -> list[GridRun]:
        """All runs with their recipes, in the order of the cells; ``prefix`` comes before their titles."""
        return [
            GridRun(f"{prefix}{cell.method} seed {cell.seed}", cell.method, cell.folder, self.recipe_of(cell), self.out)
            for cell in self.cells
        ]

    def save(self) -> None:
        """Write ``grid.json``, from which a report finds the runs."""
        runs = [{"method": c.method, "seed": c.seed, "folder": c.folder.name} for c in self.cells]
        write_json(self.out / "grid.json", {"methods": self.methods, "seeds": self.seeds, "runs": runs})


def split_expressions(text: str) -> tuple[str, ...]:
    """Split ``a,b(x=1,y=2),c`` at the commas between methods."""
    return tuple(piece.strip() for piece in re.split(r",(?![^(]*\))", text) if piece.strip())


def folder_name(method: str) -> str:
    """A method expression as a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.+=()-]", "-", method)


def parse_seeds(text: str, first: int) -> tuple[int, ...]:
    """``3`` means three seeds from the recipe's on; ``0,7,42`` (or ``7,``) is a list."""
    try:
        if "," in text:
            return tuple(int(piece) for piece in text.split(",") if piece.strip())
        return tuple(first + number for number in range(int(text)))
    except ValueError:
        raise PolyclinicError(f"--seeds {text}: expected a number such as 3, or a list such as 0,1,2.") from None


def plan_grid(recipe: Recipe, methods: tuple[str, ...], seeds: tuple[int, ...], out: Path) -> GridPlan:
    """Check methods and seeds and lay out the grid."""
    if not methods:
        raise PolyclinicError("--methods: name at least one method, such as fedavg,fedprox.")
    methods = tuple(re.sub(r"\s+", "", method) for method in methods)
    doubled = {m for m in methods if methods.count(m) > 1}
    if doubled:
        raise PolyclinicError(f"--methods: '{min(doubled)}' is there twice; name each method once.")
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise PolyclinicError(f"--seeds: expected at least one seed, none below 0 and none twice, got {list(seeds)}.")
    return GridPlan(recipe, methods, seeds, out)
