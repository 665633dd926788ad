"""Masks for new images with the model of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import make_folder
from polyclinic.core.wording import counted, readable_bytes
from polyclinic.data.federation import Federation, item_header
from polyclinic.data.own_intensity import with_own_intensity
from polyclinic.data.prediction_inputs import find_inputs
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.prediction_plan import (
    Outcome,
    Wanted,
    image_item,
    plan_files,
    record_model,
    remove_parts,
    require_same_model,
)
from polyclinic.runs.prediction_processes import (
    Progress,
    choose_places,
    segment_here,
    segment_in_programs,
    several_gpus,
)
from polyclinic.runs.trained_model import fingerprint, load_model

__all__ = ["load_model", "make_masks", "predict", "raise_failures"]

_LARGE = 10**9  # bytes of probabilities that are worth a warning
_SENTENCES = 5  # of failures in an error


def predict(
    run: str | Path,
    images: str | Path,
    out: str | Path,
    *,
    site: str | None = None,
    part: str | None = None,
    model: str | None = None,
    probabilities: bool = False,
    overwrite: bool = False,
    skip_existing: bool = False,
    jobs: int | None = None,
    plugins: bool = False,
    progress: Progress = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Segment an image file, a folder of images, or all DICOM series in a folder; gives the masks that were written.

    Each mask has its image's name, format and geometry; that of a DICOM series is a NIfTI with the name of its
    SeriesInstanceUID. If images fail, the others are done, and then an error says which and why.

    ``site`` chooses the model of one site, for methods whose sites have models of their own, and with
    ``data.intensity = "site"`` the mean and deviation that images are scaled by, else those of all these images.
    ``part`` chooses among the trainings of a protocol with several; ``model`` is ``best`` or ``last``, by default the
    one that was tested. ``probabilities`` writes those of all classes beside each mask. Files that are there already
    are an error, unless ``overwrite`` makes them again or ``skip_existing`` leaves them. ``jobs`` images are segmented
    side by side, by default as many as the machine has room for. ``plugins`` allows those that the run's recipe names
    to run: programs with your rights. ``progress`` is told how many of how many are done; ``warn`` is told when the
    training is not finished, what is left out, and whose mean and deviation are used.
    """
    outcome = make_masks(
        run, images, out, site=site, part=part, model=model, probabilities=probabilities, overwrite=overwrite,
        skip_existing=skip_existing, jobs=jobs, plugins=plugins, progress=progress, warn=warn,
    )  # fmt: skip
    raise_failures(outcome)
    return list(outcome.masks.values())


def make_masks(
    run: str | Path,
    images: str | Path,
    out: str | Path,
    *,
    site: str | None = None,
    part: str | None = None,
    model: str | None = None,
    probabilities: bool = False,
    overwrite: bool = False,
    skip_existing: bool = False,
    jobs: int | None = None,
    plugins: bool = False,
    progress: Progress = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """What :func:`predict` does, with everything that came of it; images that fail raise no error."""
    run, images, out = Path(run), Path(images), Path(out)
    # With a program for each GPU this process needs none, but it needs the model to know what to ask for.
    gpus = _gpus(run) if jobs != 1 else ()
    device = "cpu" if gpus else None
    loaded = load_model(run, site=site, part=part, model=model, warn=warn, device=device, plugins=plugins)
    task = loaded[1].task
    with TemporaryDirectory(prefix="polyclinic-dicom-") as scratch:
        found = find_inputs(images, Path(scratch), task.image_channels, task.zero_fill)
        for notice in found.notices:
            warn(notice)
        items = [image_item(image.name, image.images, image.places) for image in found.images]
        loaded = loaded[0], with_own_intensity(loaded[1], items, loaded[0].recipe.data, warn)
        wanted, skipped = plan_files(
            items, out, probabilities=probabilities, overwrite=overwrite, skip_existing=skip_existing
        )
        outcome = Outcome(out, task.classes, skipped=skipped, failed=dict(found.problems))
        if not wanted:
            return outcome
        new = not out.exists()
        make_folder(out)  # now, and not after hours of work
        if probabilities:
            _warn_of_size(wanted, out, len(task.classes), warn)
        chosen = {"run": run, "site": site, "part": part, "model": model}
        arguments = {name: str(value) for name, value in chosen.items() if value is not None}
        if "" in loaded[1].intensity:
            arguments["intensity"] = json.dumps(loaded[1].intensity[""].as_plain())
        about = {"weights": fingerprint(loaded[0]), **arguments}
        if skip_existing:
            require_same_model(out, about)
        progress = _recording(out, about, progress)
        try:
            problems = _carry_out(loaded, wanted, jobs, gpus, arguments, progress)
        except BaseException:  # the processes are gone, and what they were writing is not
            remove_parts(out, wanted)
            raise
        finally:
            if new and not any(out.iterdir()):
                out.rmdir()
        for one, problem in zip(wanted, problems, strict=True):
            # The list of a series' files lies in a folder that nobody has ever seen.
            outcome.add(one, problem and problem.replace(scratch, str(images)))
    return outcome


def _recording(out: Path, about: dict[str, str], progress: Progress) -> Progress:
    """Progress that puts down which model the masks are of, as soon as there is one."""
    recorded = False

    def told(done: int, total: int) -> None:
        nonlocal recorded
        if done and not recorded and any(out.iterdir()):
            record_model(out, about)
            recorded = True
        progress(done, total)

    return told


def _carry_out(
    loaded: tuple[Workspace, Federation],
    wanted: Sequence[Wanted],
    jobs: int | None,
    gpus: tuple[str, ...],
    arguments: dict[str, str],
    progress: Progress,
) -> list[str | None]:
    """Segment all that is wanted; for each the sentence of what went wrong, or None."""
    progress(0, len(wanted))
    places = choose_places(*loaded, wanted, jobs, gpus)
    if places.gpus or (places.processes > 1 and not places.forked):
        words = [f"--{name}={value}" for name, value in arguments.items()]
        # Those of the recipe are in this process, so they were allowed to run.
        words += ["--plugins"] if loaded[0].recipe.plugins else []
        return segment_in_programs(words, wanted, places, progress)
    return segment_here(*loaded, wanted, places.processes, progress)


def raise_failures(outcome: Outcome) -> None:
    """An error with the sentences of the images that failed, if there are any."""
    if not outcome.failed:
        return
    sentences = list(outcome.failed.values())
    more = len(sentences) - _SENTENCES
    listed = " ".join(sentences[:_SENTENCES]) + (f" And {more} more (--json lists all)." if more > 0 else "")
    written = f"{counted(len(outcome.masks), 'mask')} {'was' if len(outcome.masks) == 1 else 'were'} written"
    raise PolyclinicError(f"{written} to {outcome.out}; {len(sentences)} could not be made: {listed}")


def _gpus(run: Path) -> tuple[str, ...]:
    file = RunFolder(run).recipe_file
    return several_gpus(load_recipe(file)) if file.exists() else ()


def _warn_of_size(wanted: Sequence[Wanted], out: Path, classes: int, warn: Callable[[str], None]) -> None:
    total = 0
    for one in wanted:
        with suppress(PolyclinicError):  # its sentence comes when its turn does
            total += 4 * classes * prod(item_header(one.item).shape)
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = disk_usage(place).free
    if total > min(_LARGE, free):
        warn(
            f"{out}: the probabilities take up to {readable_bytes(total)} before compression, float32 for each of "
            f"{classes} classes; {readable_bytes(free)} are free."
        )
