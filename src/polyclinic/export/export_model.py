"""``polyclinic export``: a model of a run in a folder of its own, checked against the run before it is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.files import make_folder, write_json, write_text
from polyclinic.data.federation import Federation
from polyclinic.export.check import Check, Expected, compare, expected_predictions
from polyclinic.export.check_images import CheckImages, find_check_images
from polyclinic.export.graphs import PlainModel, require, write_onnx, write_torchscript
from polyclinic.export.huggingface_folder import front_matter, write_huggingface_files
from polyclinic.export.model_card import Chosen, model_card
from polyclinic.export.monai_bundle import run_bundle, write_bundle_files
from polyclinic.export.plain_network import plain_network
from polyclinic.export.programs import PROGRAM, copy_programs
from polyclinic.export.settings import model_settings, size_for_network
from polyclinic.export.standalone.image_files import read_file, suffix_of
from polyclinic.export.standalone.segment import Model, load_network
from polyclinic.export.usage import requirements, usage
from polyclinic.federation.checkpoint import Checkpoint
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.predict import load_model

To = Literal["onnx", "torchscript", "monai-bundle", "huggingface-folder"]
FORMATS: tuple[To, ...] = get_args(To)
_PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "huggingface-folder": ("onnx", "onnxscript", "onnxruntime"),
    "monai-bundle": ("fire", "ignite"),
    "torchscript": (),
}


@dataclass(frozen=True)
class Exported:
    """The folder, what is in it, which model it is, and how the check went."""

    folder: Path
    to: str
    files: tuple[str, ...]
    chosen: Chosen
    check: Check
    why_synthetic: str
    fixed_size: list[int] | None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "folder": str(self.folder), "check": asdict(self.check)}


def export_model(
    run: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    site: str | None = None,
    part: str | None = None,
    model: str | None = None,
    plugins: bool = False,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write a model of a run to ``out`` in one of ``FORMATS``, and compare it with the run's own predictions.

    ``site``, ``part``, ``model`` and ``plugins`` are as for ``predict``. ``say`` is told what is being done. Where the
    masks differ by more than rounding, nothing is left and an error says so.
    """
    if to not in FORMATS:
        raise PolyclinicError(f"--to {to}: no such format{suggestion(to, FORMATS) or '.'} Known: {', '.join(FORMATS)}.")
    require(*_PACKAGES[to])
    folder = RunFolder(Path(run))
    target = Path(out) if out is not None else folder.path / "exports" / "-".join(filter(None, (to, part, site, model)))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PolyclinicError(f"{target}: is there already, and nothing is overwritten; choose another --out.")
    say("reading the run")
    workspace, federation = load_model(Path(run), site=site, part=part, model=model, warn=warn, plugins=plugins)
    _require_intensity(to, workspace, federation)
    chosen = _chosen(folder, part, site, model or workspace.recipe.training.select)
    settings = model_settings(workspace, federation)
    with _staged(target) as staged, tempfile.TemporaryDirectory(prefix="polyclinic-export-") as scratch:
        say(f"writing {to}")
        _write_network(to, staged, workspace, settings)
        workspace.network.to(workspace.device)  # a frozen encoder is shared by the copy that was written from the CPU
        say("comparing with the run")
        images = find_check_images(workspace, federation, folder, chosen.part, site, Path(scratch) / "images")
        expected = expected_predictions(workspace, federation, images.items)
        check = _check(to, staged, settings, expected, images, Path(scratch))
        _require_passed(check, to)
        card = model_card(workspace, folder, chosen, settings, check, usage(to, settings))
        _write_card(to, staged, card, front_matter(workspace, folder.summary() or {}))
        files = tuple(sorted(p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file()))
    return Exported(target, to, files, chosen, check, images.why, settings["inference"]["fixed_size"])


def _chosen(folder: RunFolder, part: str | None, site: str | None, model: str) -> Chosen:
    """Which model ``load_model`` has taken: without ``part`` there is a single one."""
    name = part or next(path.name for path in (folder.path / "checkpoints").iterdir() if path.is_dir())
    return Chosen(name, site, model, Checkpoint(folder.part(name)).load_model(model)[2] + 1)


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that takes its place when the block ends well, and goes when it does not."""
    staged = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    make_folder(target.parent)
    try:
        yield staged
        if target.exists():
            target.rmdir()  # it is empty, or this fails
        staged.replace(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write_network(to: str, folder: Path, workspace: Workspace, settings: dict[str, Any]) -> None:
    """The graph, the settings, and the programs around them."""
    network = plain_network(workspace.network)
    plain = PlainModel(network, workspace.task.channels, size_for_network(settings), settings)
    if to == "monai-bundle":
        write_torchscript(plain, folder / "models" / "model.ts")
        about = f"Federated segmentation with {workspace.recipe.method}, made by polyclinic."
        write_bundle_files(folder, settings, about)
        return
    if to == "torchscript":
        write_torchscript(plain, folder / "model.ts")
    else:
        write_onnx(plain, folder / "model.onnx")
    if to == "huggingface-folder":
        write_huggingface_files(folder, workspace, settings)
    else:
        write_json(folder / "model.json", settings)
    copy_programs(PROGRAM, folder)
    write_text(folder / "requirements.txt", requirements(to))


def _write_card(to: str, folder: Path, card: str, head: str) -> None:
    if to == "monai-bundle":
        write_text(folder / "docs" / "README.md", card)
        write_text(folder / "LICENSE", "To be filled in by those who own the data and the model.\n")
    elif to == "huggingface-folder":
        write_text(folder / "README.md", head + card)
    else:
        write_text(folder / "MODEL_CARD.md", card)


def _check(
    to: str, folder: Path, settings: dict[str, Any], expected: list[Expected], images: CheckImages, scratch: Path
) -> Check:
    """The exported files, run as their users would, against the run's own predictions."""
    if to != "monai-bundle":
        return compare(Model(folder), expected, images.kind)
    write_json(scratch / "model.json", settings)
    model = Model(scratch, load_network(folder / "models"))
    copies = _copied(expected, scratch / "inputs")
    run_bundle(folder, scratch / "inputs", scratch / "masks")
    for compiled in list(folder.rglob("__pycache__")):
        shutil.rmtree(compiled)

    def read_mask(wanted: Expected) -> Any:
        (path,) = (scratch / "masks").glob(f"{copies[wanted.item.images[0]]}.*")
        return np.asarray(read_file(path)[0][0])

    return compare(model, expected, images.kind, read_mask)


def _copied(expected: list[Expected], folder: Path) -> dict[Path, str]:
    """Give each image a name of its own in one folder: those of several sites may have the same."""
    make_folder(folder)
    names = {}
    for number, wanted in enumerate(expected):
        names[wanted.item.images[0]] = f"image{number}"
        several = len(wanted.item.images) > 1 or wanted.item.places
        places = wanted.item.places or range(len(wanted.item.images))
        for place, path in zip(places, wanted.item.images, strict=True):
            _copy_image(path, folder / f"image{number}{f'_{place:04d}' if several else ''}")
    return names


def _copy_image(path: Path, target: Path) -> None:
    """Copy a file under another name; an MHD is two files, of which one names the other, and becomes an MHA."""
    if suffix_of(path) != ".mhd":
        shutil.copyfile(path, f"{target}{suffix_of(path)}")
        return
    import itk

    itk.imwrite(itk.imread(str(path)), f"{target}.mha")


def _require_intensity(to: str, workspace: Workspace, federation: Federation) -> None:
    if to == "monai-bundle" and workspace.recipe.data.intensity == "site" and not federation.intensity:
        raise PolyclinicError(
            "--to monai-bundle: with data.intensity = site images are scaled by the mean and deviation of several, and "
            "a bundle sees one image at a time; give --site NAME to put those of a site into it, or use --to onnx or "
            "--to torchscript."
        )


def _require_passed(check: Check, to: str) -> None:
    if not check.passed:
        raise PolyclinicError(
            f"The {to} model is not the run's and was deleted ({check.sentence()}, {check.unexplained} of them beyond "
            "rounding); try another --to, and report this as a fault of polyclinic."
        )
