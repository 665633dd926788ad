"""What a folder that ``--out`` names holds already: results of one kind go on there, and never into anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.layouts import looks_like_site
from polyclinic.runs.folder import RunFolder

Kind = Literal["run", "comparison", "study"]


def refuse_other_use(out: Path, wanted: Kind) -> None:
    """Stop where a folder is another kind's, or a federation's; one that holds ``wanted`` already may go on."""
    if not out.is_dir():
        return
    held = _held(out)
    if wanted in held:
        return
    for words in held.values():
        raise PolyclinicError(
            f"{out}: holds {words}, with which a {wanted} would be mixed up; choose another folder with --out."
        )
    if sign := _sign_of_images(out):
        raise PolyclinicError(
            f"{out}: is a folder of images ({sign}), which results must stay apart from; "
            "choose another folder with --out."
        )
    if wanted == "run" and (recipe := RunFolder(out).recipe_file).exists():
        raise PolyclinicError(
            f"{recipe}: is a recipe without a run, which the run's own would replace; choose another folder with --out."
        )


def _held(out: Path) -> dict[Kind, str]:
    """Results of polyclinic, in words; earlier versions let several kinds into one folder."""
    held: dict[Kind, str] = {}
    if (out / "study.json").exists():
        held["study"] = "a study (study.json)"
    if (out / "grid.json").exists():
        ablation = (out / "ablation.json").exists()
        held["comparison"] = "an ablation (ablation.json)" if ablation else "a comparison (grid.json)"
    if RunFolder(out).begun():
        held["run"] = "a single run (recipe.toml)"
    return held


def _sign_of_images(out: Path) -> str:
    """What shows that a folder is a federation or a site of one; empty where nothing does."""
    for name in ("federation.toml", "manifest.csv"):
        if (out / name).is_file():
            return name
    if looks_like_site(out):
        return "images" if (out / "images").is_dir() else "imagesTr"
    for folder in sorted(out.iterdir()):
        # Folders called images are common; with labels beside them they are a site's.
        if (folder / "images").is_dir() and (folder / "labels").is_dir():
            return f"{folder.name}/images"
        if (folder / "imagesTr").is_dir():
            return f"{folder.name}/imagesTr"
    return ""
