"""Pages of tables on real federations: what they name exists, and what is committed follows from the records."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest

from polyclinic.methods.expression import parse_method

REAL = Path(__file__).resolve().parents[2] / "benchmarks" / "real"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REAL))
    for name in [
        one
        for one in sys.modules
        if one.split(".")[0] in ("pages", "page", "grids", "sections", "records", "federations")
    ]:
        del sys.modules[name]
    import pages

    return pages


def test_every_recipe_loads_and_every_method_is_one(pages: ModuleType, tmp_path: Path) -> None:
    """Networks of published tables are not the smallest ones; FSF3A's volumes are what two cores can do."""
    from federations import MADE, SLICED

    for page in pages.PAGES.values():
        assert len({grid.name for grid in page.grids}) == len(page.grids)
        for grid in page.grids:
            recipe = grid.recipe_on(tmp_path)
            name = Path(recipe.federation).name
            assert Path(recipe.federation) == (MADE / name if name in SLICED else tmp_path / name)
            assert (recipe.network.width >= 16 and recipe.network.depth >= 4) or page.name == "fsf3a"
            for method in grid.methods:
                assert parse_method(method)
            for methods in grid.parts.values():
                assert set(methods) <= set(grid.methods)


def test_one_table_of_a_page_can_be_trained_alone(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[tuple[str, ...], int | None]] = []
    monkeypatch.setattr(
        "page.Page.make", lambda page, data, out, jobs, grids, seeds: made.append((tuple(grids), seeds))
    )
    monkeypatch.setenv("POLYCLINIC_REAL_DATA", str(tmp_path))

    def called(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["real", *arguments])
        runpy.run_path(str(REAL / "__main__.py"), run_name="__main__")

    called("fedbcs", "--grid", "brain_lgg", "--grid", "search")
    called("fedbcs", "--tables")
    called("fsf3a", "--seeds", "2")
    assert made == [(("brain_lgg", "search"), None), ((), None), (("hippocampus",), 2)]
    for wrong in (("--seeds", "0"), ("--grid", "brain")):
        with pytest.raises(SystemExit):
            called("fedbcs", *wrong)
    assert "fedbcs has no table 'brain'; it has search, rounds-60, retina_vessel" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in (REAL / "pages").glob("[a-z]*.py")))
def test_the_committed_page_follows_from_the_records_without_training(
    pages: ModuleType, tmp_path: Path, name: str
) -> None:
    """Means, intervals, p-values and words are computed again from every value of every case."""
    import records

    if name == "shared":
        assert name not in pages.PAGES
        return
    page = pages.PAGES[name]
    records.restore(REAL / "records" / f"{name}.tar.xz", tmp_path, tmp_path)
    assert page.text(tmp_path, tmp_path) == (REAL / f"{name}.md").read_text(encoding="utf-8")


def test_slices_of_volumes_are_a_federation_of_links(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The volumes' own folder may be read only, and stays as it is; a folder that was begun is made whole."""
    import federations

    from polyclinic.data.check import check_federation
    from polyclinic.data.phantoms.demo_files import write_demo

    volumes = tmp_path / "data" / "prostate3d"
    write_demo("tumour", volumes, size=16, cases=3)
    before = {path: path.stat().st_mtime_ns for path in volumes.rglob("*")}
    monkeypatch.setattr(federations, "MADE", tmp_path / "made")
    folder = federations.make("prostate_slices", tmp_path / "data")
    assert folder == federations.place("prostate_slices", tmp_path / "data") == tmp_path / "made" / "prostate_slices"
    (folder / "manifest.csv").unlink()
    assert federations.make("prostate_slices", tmp_path / "data") == folder
    report = check_federation(folder)
    assert (report.federation.task.spatial_dims, len(report.rows), report.errors) == (2, 3, ())
    assert {path: path.stat().st_mtime_ns for path in volumes.rglob("*")} == before
    assert federations.make("brain_lgg", tmp_path) == tmp_path / "brain_lgg"


def test_what_is_done_of_an_interrupted_grid_is_recorded(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The runs of a session that is cut off are not lost; another grid is not begun."""
    import grids
    import page

    begun: list[tuple[int, ...]] = []

    def compare(recipe: object, methods: tuple[str, ...], out: Path, seeds: tuple[int, ...], jobs: int | None) -> None:
        begun.append(seeds)
        run = out / f"fedavg-seed{seeds[0]}"
        run.mkdir(parents=True)
        (run / "summary.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("polyclinic.compare", compare)
    (tmp_path / "records").mkdir()
    monkeypatch.setattr(page, "HERE", tmp_path)
    one = page.Page("new", "Title", (), tuple(grids.Grid(name, "", "pictures", ("fedavg",)) for name in ("a", "b")))
    with pytest.raises(KeyboardInterrupt):
        one.make(tmp_path, tmp_path / "runs", 1, ("a", "b"), most_seeds=2)
    assert begun == [(0, 1)]
    import records

    records.restore(tmp_path / "records" / "new.tar.xz", tmp_path / "again", tmp_path)
    assert [path.parent.name for path in (tmp_path / "again").rglob("summary.json")] == ["fedavg-seed0"]


def test_a_new_row_hides_no_table_whose_other_rows_are_done(pages: ModuleType, tmp_path: Path) -> None:
    """Rows whose seeds are all done are shown; without the reference nothing is."""
    import grids

    grid = grids.Grid("grid", "Title", "pictures", ("fedavg", "fedbn", "fedprox"), seeds=(0, 1))

    def finish(method: str, seed: int) -> None:
        folder = tmp_path / "grid" / f"{method}-seed{seed}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}")

    out = tmp_path / "grid"
    finish("fedbn", 0), finish("fedbn", 1), finish("fedprox", 0), finish("fedavg", 0)
    assert grid.finished_rows(tmp_path, out) is None, "the reference has one seed"
    finish("fedavg", 1)
    assert grid.finished_rows(tmp_path, out).methods == ("fedavg", "fedbn")
    finish("fedprox", 1)
    assert grid.finished_rows(tmp_path, out) == grid
    assert replace(grid, differences=(("fedbn", "new"),)).finished_rows(tmp_path, out).differences == ()
    with_parts = replace(grid, methods=("fedavg", "fedbn", "new"), parts={"a": ("fedbn", "new"), "b": ("new",)})
    assert with_parts.finished_rows(tmp_path, out).parts == {"a": ("fedbn",)}


def test_a_grid_of_five_seeds_begins_to_show_with_three(pages: ModuleType, tmp_path: Path) -> None:
    import grids

    grid = grids.Grid("grid", "Title", "pictures", ("fedavg", "fedbn"), seeds=(0, 1, 2, 3, 4))

    def finish(method: str, *seeds: int) -> None:
        for seed in seeds:
            folder = tmp_path / "grid" / f"{method}-seed{seed}"
            folder.mkdir(parents=True)
            (folder / "summary.json").write_text("{}")

    out = tmp_path / "grid"
    finish("fedavg", 0, 1, 2, 3), finish("fedbn", 0, 1)
    assert grid.finished_rows(tmp_path, out) is None
    finish("fedbn", 2)
    assert grid.finished_rows(tmp_path, out) == replace(grid, seeds=(0, 1, 2))
    finish("fedbn", 3, 4), finish("fedavg", 4)
    assert grid.finished_rows(tmp_path, out) == grid


def test_recorded_averages_are_those_of_the_recorded_cases(pages: ModuleType, tmp_path: Path) -> None:
    """Naively: a site's Dice is the mean over its cases and classes, the average is that over sites."""
    import records

    records.restore(REAL / "records" / "fsf3a.tar.xz", tmp_path, tmp_path)
    runs = sorted(tmp_path.glob("*/*/summary.json"))
    assert len(runs) == sum(len(grid.methods) * len(grid.seeds) for grid in pages.PAGES["fsf3a"].grids)
    for path in runs[::7]:
        by_site: dict[str, list[float]] = {}
        with (path.parent / "cases.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["metric"] == "dice" and row["value"]:
                    by_site.setdefault(row["site"], []).append(float(row["value"]))
        summary = json.loads(path.read_text(encoding="utf-8"))
        means = {site: mean(values) for site, values in by_site.items()}
        assert {site: values["dice"] for site, values in summary["sites"].items()} == pytest.approx(means)
        assert summary["average"]["dice"] == pytest.approx(mean(means.values()))


def test_a_further_difference_takes_the_second_method_from_the_first(pages: ModuleType, tmp_path: Path) -> None:
    """Naively: both methods' averages over sites, mean over seeds, as no case of these volumes is left out."""
    import records

    records.restore(REAL / "records" / "fsf3a.tar.xz", tmp_path, tmp_path)
    (grid,) = pages.PAGES["fsf3a"].grids
    method, other = pair = ("fsf3a", "fedfocaltversky")
    assert pair in grid.differences
    grid.plan(tmp_path, tmp_path / grid.name).save()
    means = [mean(grid.scores(tmp_path, tmp_path, name)) for name in (method, other)]
    line = next(
        one for one in grid._differences(tmp_path / grid.name, "dice") if one.startswith(f"- {method} against {other}:")
    )
    difference, low, high = (float(word.strip("[],")) for word in line.split()[-3:])
    assert difference == pytest.approx(means[0] - means[1], abs=0.005)
    assert low < difference < high


def test_shares_of_the_gap_are_between_the_two_references(pages: ModuleType) -> None:
    import sections

    from polyclinic.report.tables import Comparison

    scores = {"fedavg": [0.7, 0.8], "local": [0.6, 0.6], "central": [0.8, 1.0], "worse": [0.5, 0.5]}
    values = {method: {"average": list(own)} for method, own in scores.items()}
    text = "\n".join(sections.gap_closed(Comparison("dice", tuple(scores), (), values)))
    assert "| fedavg | 50% |" in text
    assert "| worse | -33% |" in text
    assert "30.00 points" in text
    assert "| central |" not in text
    below = {**values, "local": {"average": [0.85]}, "central": {"average": [0.9]}}
    assert "Every method is below `local`" in "\n".join(
        sections.gap_closed(Comparison("dice", tuple(below), (), below))  # type: ignore[arg-type]
    )
    without = {method: own for method, own in values.items() if method != "central"}
    assert sections.gap_closed(Comparison("dice", tuple(without), (), without)) == []
    assert (
        sections.gap_closed(Comparison("dice", ("local", "central"), (), {**values, "central": values["worse"]})) == []
    )


def test_a_page_names_the_units_that_its_runs_settled(pages: ModuleType, tmp_path: Path) -> None:
    import sections

    run = tmp_path / "fedavg-seed0"
    run.mkdir()
    (run / "recipe.toml").write_text('federation = "demo:nuclei"\n[evaluation]\nunits = "pixel"\n')
    assert sections.units_of({"fedavg": [run]}) == "", "not finished"
    (run / "summary.json").write_text("{}")
    assert sections.units_of({"fedavg": [run]}) == "pixels"
