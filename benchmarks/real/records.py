"""Records of finished runs: what tables and statistics are computed from, without weights, in one compressed file a grid.

They are in the repository, so that everybody can recompute a table without training, and so that a grid that was begun
on one machine goes on at another: restored runs count as finished.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

from polyclinic.core.files import atomic_write, read_json, write_text
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe, recipe_text

FILES = ("recipe.toml", "versions.json", "split.csv", "summary.json", "events.jsonl", "cases.csv", "cases-round-*.csv")
LIMIT = 200_000_000  # bytes of an unpacked record


def keep(grid: Path, archive: Path) -> int:
    """Write the finished runs of a grid into a file, equal for equal runs; gives their number.

    The path of the federation, which is one machine's, is left out of the recipes: only its name stays.
    """
    packed, runs = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _add(tar, "grid.json", (grid / "grid.json").read_bytes())
        for folder in sorted(entry["folder"] for entry in read_json(grid / "grid.json")["runs"]):
            if (grid / folder / "summary.json").exists():
                runs += 1
                for name, content in _contents(grid / folder):
                    _add(tar, f"{folder}/{name}", content)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(archive) as part:
        part.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    return runs


def restore(archive: Path, grid: Path, federation: str) -> None:
    """Unpack records into a grid's folder; runs that are there already stay as they are."""
    if not archive.exists():
        return
    with tarfile.open(fileobj=io.BytesIO(_unpacked(archive))) as tar:
        names = [member.name for member in tar if member.isfile()]
        known = {name.split("/")[0] for name in names if (grid / name.split("/")[0] / "recipe.toml").exists()}
        # The summary says that a run is finished, so it comes last.
        for name in sorted(names, key=lambda name: name.endswith("summary.json")):
            if name.split("/")[0] not in known:
                file = tar.extractfile(name)
                assert file is not None
                (grid / name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(grid / name) as part:
                    part.write_bytes(file.read())
                if name.endswith("recipe.toml"):
                    _name_federation(grid / name, federation)


def _contents(run: Path) -> Iterator[tuple[str, bytes]]:
    for pattern in FILES:
        for path in sorted(run.glob(pattern)):
            if path.name == "recipe.toml":
                recipe = load_recipe(path)
                recipe = with_changes(recipe, {"federation": Path(recipe.federation).name})
                yield path.name, recipe_text(recipe).encode()
            else:
                yield path.name, path.read_bytes()


def _name_federation(path: Path, federation: str) -> None:
    write_text(path, recipe_text(with_changes(load_recipe(path), {"federation": federation})))


def _unpacked(archive: Path) -> bytes:
    content = lzma.LZMADecompressor().decompress(archive.read_bytes(), LIMIT)
    assert len(content) < LIMIT, f"{archive} is no record of runs: it has more than {LIMIT} bytes"
    return content


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    tar.addfile(about, io.BytesIO(content))
