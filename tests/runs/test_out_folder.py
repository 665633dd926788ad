"""Results of one kind go on in their folder, and never into that of another kind, nor between images."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.runs.out_folder import Kind, refuse_other_use
from report_support import write_grid, write_run, write_study
from support import write_tiny_federation

KINDS: tuple[Kind, ...] = ("run", "comparison", "study")


def refusal(out: Path, wanted: Kind) -> str:
    with pytest.raises(PolyclinicError) as error:
        refuse_other_use(out, wanted)
    return str(error.value)


def test_a_new_folder_an_empty_one_and_one_with_other_files_take_anything(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "images").mkdir()
    (tmp_path / "plan.md").write_text("")
    for out in (tmp_path / "new", tmp_path / "notes" / "images", tmp_path):
        for kind in KINDS:
            refuse_other_use(out, kind)


def test_each_kind_goes_on_in_its_own_folder_alone(tmp_path: Path) -> None:
    folders: dict[Kind, tuple[Path, str]] = {
        "run": (write_run(tmp_path / "a"), "holds a single run (recipe.toml), with which a"),
        "comparison": (write_grid(tmp_path / "b"), "holds a comparison (grid.json), with which a"),
        "study": (write_study(tmp_path / "c"), "holds a study (study.json), with which a"),
    }
    for kind, (out, words) in folders.items():
        refuse_other_use(out, kind)
        for other in set(KINDS) - {kind}:
            assert refusal(out, other) == (
                f"{out}: {words} {other} would be mixed up; choose another folder with --out."
            )


def test_an_ablation_is_a_comparison(tmp_path: Path) -> None:
    grid = write_grid(tmp_path)
    write_json(grid / "ablation.json", {})
    refuse_other_use(grid, "comparison")
    assert "holds an ablation (ablation.json)" in refusal(grid, "study")


def test_what_an_earlier_version_has_mixed_up_goes_on(tmp_path: Path) -> None:
    write_json(write_grid(tmp_path) / "study.json", {})
    refuse_other_use(tmp_path, "study")
    refuse_other_use(tmp_path, "comparison")
    assert "a study" in refusal(tmp_path, "run")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_goes_between_images(tmp_path: Path, kind: Kind) -> None:
    federation = write_tiny_federation(tmp_path / "fed")
    assert refusal(federation, kind) == (
        f"{federation}: is a folder of images (federation.toml), which results must stay apart from; "
        "choose another folder with --out."
    )
    (federation / "federation.toml").rename(federation / "manifest.csv")
    assert "(manifest.csv)" in refusal(federation, kind)
    (federation / "manifest.csv").unlink()
    assert "(north/images)" in refusal(federation, kind)
    assert "(images)" in refusal(federation / "north", kind)
    (tmp_path / "published" / "site" / "imagesTr").mkdir(parents=True)
    assert "(site/imagesTr)" in refusal(tmp_path / "published", kind)
    assert "(imagesTr)" in refusal(tmp_path / "published" / "site", kind)


def test_results_that_lie_between_images_already_go_on(tmp_path: Path) -> None:
    write_grid(write_tiny_federation(tmp_path / "fed"))
    refuse_other_use(tmp_path / "fed", "comparison")


def test_a_run_replaces_no_recipe_of_a_person(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("seed = 1")
    assert refusal(tmp_path, "run") == (
        f"{tmp_path / 'recipe.toml'}: is a recipe without a run, which the run's own would replace; "
        "choose another folder with --out."
    )
    refuse_other_use(tmp_path, "comparison")
    (tmp_path / "versions.json").write_text("{}")
    refuse_other_use(tmp_path, "run")
