"""Records of finished runs: what tables and statistics are computed from, without weights, in one compressed file.

They are in the repository, so that everybody can recompute a table without training, and so that grids that were begun
on one machine go on at another: restored runs count as finished.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

from federations import place

from polyclinic.core.files import atomic_write, write_text
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe, recipe_text

FILES = (
    "recipe.toml",
    "versions.json",
    "method.json",
    "split*.csv",
    "labelled*.csv",
    "events.jsonl",
    "cases.csv",
    "cases-round-*.csv",
    "summary.json",
)
LIMIT = 1_000_000_000  # bytes of all records of a file


def keep(folder: Path, archive: Path) -> int:
    """Write the finished runs below a folder, and the plans of their grids, into a file; gives the number of runs.

    Equal runs give equal files. The path of the federation is one machine's: only its name stays in the recipes.
    """
    packed, runs = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for plan in sorted(folder.rglob("grid.json")):
            _add(tar, plan.relative_to(folder), plan.read_bytes())
        for summary in sorted(folder.rglob("summary.json")):
            runs += 1
            for path, content in _contents(summary.parent):
                _add(tar, path.relative_to(folder), content)
    with atomic_write(archive) as part:
        part.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    return runs


def restore(archive: Path, folder: Path, data: Path) -> None:
    """Unpack records below a folder; runs that are there already stay. ``data`` holds the federations by name."""
    if not archive.exists():
        return
    with tarfile.open(fileobj=io.BytesIO(_unpacked(archive))) as tar:
        for member in tar:
            path = folder / member.name
            file = tar.extractfile(member) if member.isfile() else None
            assert file is not None, f"{archive}: {member.name} is no plain file"
            assert path.resolve().is_relative_to(folder.resolve()), f"{archive}: {member.name} leads out of the folder"
            # The recipe is a run's first file and its summary the last: one that is there was begun, or is done.
            if not (path.parent / "summary.json").exists() and not (path.name == "grid.json" and path.exists()):
                with atomic_write(path) as part:
                    part.write_bytes(file.read())
                if path.name == "recipe.toml":
                    _set_federation(path, data)


def _contents(run: Path) -> Iterator[tuple[Path, bytes]]:
    for pattern in FILES:
        for path in sorted(run.glob(pattern)):
            if path.name == "recipe.toml":
                recipe = load_recipe(path)
                recipe = with_changes(recipe, {"federation": Path(recipe.federation).name})
                yield path, recipe_text(recipe).encode()
            else:
                yield path, path.read_bytes()


def _set_federation(path: Path, data: Path) -> None:
    recipe = load_recipe(path)
    write_text(path, recipe_text(with_changes(recipe, {"federation": str(place(Path(recipe.federation).name, data))})))


def _unpacked(archive: Path) -> bytes:
    content = lzma.LZMADecompressor().decompress(archive.read_bytes(), LIMIT)
    assert len(content) < LIMIT, f"{archive} is no record of runs: it has more than {LIMIT} bytes"
    return content


def _add(tar: tarfile.TarFile, name: Path, content: bytes) -> None:
    about = tarfile.TarInfo(name.as_posix())
    about.size = len(content)
    tar.addfile(about, io.BytesIO(content))
