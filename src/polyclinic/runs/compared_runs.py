"""The finished runs that pictures of a folder are about: a run, or one seed of a grid or of a study's first value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.files import read_json
from polyclinic.runs.folder import RunFolder

_CONTENTS = ("recipe.toml", "task.json", "checkpoints/*/server.safetensors", "checkpoints/*/best.safetensors",
             "checkpoints/*/cases.csv")  # fmt: skip
# A site's memory also holds its optimiser's and can be large; its name says the round.
_NAMES_AND_SIZES = ("sites/*/*/round-*.safetensors", "sites/*/runs/*/*/round-*.safetensors")


@dataclass(frozen=True)
class ComparedRuns:
    """Run folders of one seed by method, in the order of the table; ``reference`` is what the others are held against.

    ``unfinished`` are the methods without a result for that seed; ``about`` says which value of a study it is.
    """

    folders: dict[str, Path]
    reference: str
    seed: int
    unfinished: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    def inputs(self) -> dict[str, Any]:
        """What pictures are made of, to find out whether it has changed: a hash for each run."""
        return {"reference": self.reference, "runs": {name: _hash(folder) for name, folder in self.folders.items()}}


def compared_runs(folder: Path, reference: str | None = None) -> ComparedRuns:
    """Read which runs a folder holds. Without ``reference`` it is the first method that has a result.

    The seed is the first one for which the reference has a result; ``PolyclinicError`` if there is none.
    """
    candidates, about = _candidates(folder)
    methods = list(dict.fromkeys(method for method, _, _ in candidates))
    if reference is not None and reference not in methods:
        known = ", ".join(methods)
        hint = suggestion(reference, methods) or "."
        raise PolyclinicError(f"{folder}: has no method '{reference}'{hint} It holds: {known}.")
    finished = [(m, s, path) for m, s, path in candidates if RunFolder(path).summary_file.exists()]
    chosen = [(m, s) for m, s, _ in finished if reference in (None, m)]
    if not chosen:
        raise PolyclinicError(f"{folder}: holds no finished run{f' of {reference}' if reference else ''} yet.")
    first, seed = min(chosen, key=lambda one: methods.index(one[0]))
    folders = {method: path for method in methods for m, s, path in finished if m == method and s == seed}
    return ComparedRuns(folders, first, seed, tuple(m for m in methods if m not in folders), about)


def _candidates(folder: Path) -> tuple[list[tuple[str, int, Path]], dict[str, Any]]:
    """Method, seed and folder of all runs, done or not, and what a study has to say of them."""
    if (folder / "study.json").exists():
        return _study(folder)
    if (folder / "grid.json").exists():
        return _grid(folder), {}
    if RunFolder(folder).recipe_file.exists():
        summary: Mapping[str, Any] = RunFolder(folder).summary() or {}
        return [(str(summary.get("method", "")), int(summary.get("seed", 0)), folder)], {}
    raise PolyclinicError(f"{folder}: is no run, comparison or study; give a folder that `run` or `compare` made.")


def _study(folder: Path) -> tuple[list[tuple[str, int, Path]], dict[str, Any]]:
    study = read_json(folder / "study.json")
    try:
        value = next(iter(study["values"]))
        fixed = study.get("fixed")  # one grid for all values, or, with two keys, one for each pair of values
        fixed = fixed.get(value) if isinstance(fixed, dict) else fixed
        grids = [name for name in (study["grids"].get(value), fixed) if name]
        order = {method: number for number, method in enumerate(study["methods"])}
        about = {"key": study["key"], "value": value}
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise _damaged(folder / "study.json") from error
    found = [run for name in grids for run in _grid(_inside(folder, name))]
    return sorted(found, key=lambda run: order.get(run[0], len(order))), about


def _grid(folder: Path) -> list[tuple[str, int, Path]]:
    path = folder / "grid.json"
    if not path.exists():
        return []
    try:
        entries = [(str(run["method"]), int(run["seed"]), str(run["folder"])) for run in read_json(path)["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path) from error
    return [(method, seed, _inside(folder, name)) for method, seed, name in entries]


def _damaged(path: Path) -> PolyclinicError:
    return PolyclinicError(f"{path}: does not say which runs there are; start the same command again, which writes it.")


def _inside(folder: Path, name: str) -> Path:
    """A folder in another one; a file that was tampered with must not lead out of it."""
    if Path(name).name != name or name in ("", "..", "."):
        raise PolyclinicError(f"{folder}: names the folder '{name}', which does not lie in it; restore the file.")
    return folder / name


def _hash(run: Path) -> str:
    total = sha256()
    for path in sorted(path for pattern in _CONTENTS for path in run.glob(pattern)):
        with path.open("rb") as file:
            total.update(f"{path.relative_to(run)} {file_digest(file, 'sha256').hexdigest()}\n".encode())
    for path in sorted(path for pattern in _NAMES_AND_SIZES for path in run.glob(pattern)):
        total.update(f"{path.relative_to(run)} {path.stat().st_size}\n".encode())
    return total.hexdigest()
