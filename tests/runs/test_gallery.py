"""A gallery as a whole: what it is made of, made once, and for its owner alone."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path

import polyclinic
from gallery_support import MORE_TESTS, grid_of, table
from polyclinic.runs.gallery import make_gallery
from support import write_tiny_federation, write_tiny_recipe

Finished = Callable[..., Path]


def test_another_reference_and_metric_pick_other_cases(finished: Finished, tmp_path: Path) -> None:
    folder = grid_of(tmp_path, finished, ("fedavg", "local"), MORE_TESTS)
    make_gallery(folder, reference="local", metric="asd")
    found = table(folder)
    assert (found["reference"], found["metric"]) == ("local", "asd")
    values = [entry["scores"]["local"] for entry in found["sites"]["north"]]
    assert values == sorted(values)  # of a distance the smallest is the best
    assert all(entry["agrees"] for entry in found["sites"]["north"])


def test_only_the_owner_can_read_and_names_say_nothing(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "f", {"<b>north & south": 5})
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    run = polyclinic.run(recipe, out=tmp_path / "run").folder
    make_gallery(run)
    folder = run / "gallery"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) >= 4
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.name == "gallery.json" or re.fullmatch(r"[0-9a-f]{20}\.png", path.name)
    assert list(table(run)["sites"]) == ["<b>north & south"]


def test_a_gallery_that_is_there_is_not_made_again(finished: Finished, tmp_path: Path) -> None:
    folder = grid_of(tmp_path, finished, ("fedavg", "local"), MORE_TESTS)
    told: list[tuple[int, int, str]] = []
    first = make_gallery(folder, progress=lambda *news: told.append(news))
    assert [news[:2] for news in told] == [(0, 10), (3, 10), (6, 10), (8, 10), (10, 10)]
    told.clear()
    again = make_gallery(folder, progress=lambda *news: told.append(news))
    assert (again.reused, again.cases, again.skipped, told) == (True, first.cases, first.skipped, [])
    picture = next(path for path in (folder / "gallery").iterdir() if path.suffix == ".png")
    content = picture.read_bytes()
    picture.unlink()
    assert not make_gallery(folder).reused
    assert picture.read_bytes() == content
    assert not make_gallery(folder, reference="local").reused
    assert not make_gallery(folder).reused
    used = set(re.findall(r"[0-9a-f]{20}\.png", (folder / "gallery" / "gallery.json").read_text()))
    assert used == {path.name for path in (folder / "gallery").glob("*.png")}
