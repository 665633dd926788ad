"""Images side by side: the same masks from any number of processes, and no more of them than there is room for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe
from polyclinic.runs import prediction_processes
from polyclinic.runs.predict import load_model, make_masks
from polyclinic.runs.prediction_plan import Wanted, image_item
from polyclinic.runs.prediction_processes import (
    Places,
    choose_places,
    image_bytes,
    segment_here,
    segment_in_programs,
    several_gpus,
)

Finished = Callable[..., Path]
WHERE = "polyclinic.runs.prediction_processes"


def masks(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.png"))}


def wanted_of(images: Path, out: Path) -> list[Wanted]:
    listed = sorted(images.glob("*.png"))
    return [Wanted(image_item(path.stem, (path,), ()), out / path.name, None) for path in listed]


def test_forked_processes_and_programs_give_the_masks_of_one_process(
    finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    images = tiny_federation / "north" / "images"
    for jobs in (1, 3):
        outcome = make_masks(finished(), images, tmp_path / f"jobs{jobs}", jobs=jobs)
        assert list(outcome.masks) == [f"case{number}" for number in range(5)]
    wanted = wanted_of(images, tmp_path / "program")
    answers = segment_in_programs([f"--run={finished()}"], wanted, Places(1, forked=False), lambda *_: None)
    assert answers == [None] * 5
    assert masks(tmp_path / "jobs1") == masks(tmp_path / "jobs3") == masks(tmp_path / "program")
    assert len(masks(tmp_path / "jobs1")) == 5


def test_programs_are_told_the_mean_and_deviation_of_all_images(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, images = finished("fedavg", "data.intensity=site"), tiny_federation / "north" / "images"
    make_masks(run, images, tmp_path / "here", jobs=1)
    monkeypatch.setattr("polyclinic.runs.predict.choose_places", lambda *_: Places(2, forked=False))
    make_masks(run, images, tmp_path / "programs", jobs=2)
    assert masks(tmp_path / "here") == masks(tmp_path / "programs")
    (tmp_path / "here" / "case0.png").unlink()
    with pytest.raises(PolyclinicError, match="or other images' mean and deviation"):
        make_masks(run, images / "case0.png", tmp_path / "here", skip_existing=True)


def test_where_a_process_cannot_be_forked_programs_are_asked(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads; the program of this test only says who it is and what it was asked."""
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    print(json.dumps(f\"{os.getpid()} {request['name']} {sys.argv[1:]}\"), flush=True)\n"
    )
    monkeypatch.setattr(prediction_processes, "PROGRAM", ("-c", program))
    run = finished("fedavg", "engine.threads=2")
    outcome = make_masks(run, tiny_federation / "north", tmp_path, model="last", jobs=2)
    said = [answer.split(" ", 2) for answer in outcome.failed.values()]
    assert [name for _, name, _ in said] == [f"case{number}" for number in range(5)]
    assert {arguments for _, _, arguments in said} == {str([f"--run={run}", "--model=last"])}
    assert str(os.getpid()) not in {pid for pid, _, _ in said}


def test_a_program_that_dies_loses_its_image_alone(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is one of the test's own that dies at the second image; the real one is tested above."""
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if request['name'] == 'case1':\n"
        "        os.kill(os.getpid(), 9)\n"
        "    print(json.dumps(os.environ['CUDA_VISIBLE_DEVICES']), flush=True)\n"
    )
    monkeypatch.setattr(prediction_processes, "PROGRAM", ("-c", program))
    wanted = wanted_of(tiny_federation / "north" / "images", tmp_path)
    told: list[tuple[int, int]] = []
    places = Places(1, forked=False, gpus=("GPU-7", "GPU-8"))
    answers = segment_in_programs([], wanted, places, lambda *what: told.append(what))
    assert [answers[number] for number in (0, 2, 3, 4)] == ["GPU-7"] * 4
    assert "case1.png: its process ended by signal 9" in str(answers[1])
    assert told == [(number, 5) for number in range(1, 6)]


def test_a_forked_process_that_dies_says_how_to_go_on(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_processes, "carry_out", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    model = load_model(finished(), site=None, part=None, model=None)
    wanted = wanted_of(tiny_federation / "north" / "images", tmp_path)
    with pytest.raises(PolyclinicError, match=r"ended by signal 9, .* go on with --skip-existing --jobs 1"):
        segment_here(*model, wanted, 2, lambda *_: None)


def on(workspace: Workspace, threads: int) -> Workspace:
    return replace(workspace, recipe=with_changes(workspace.recipe, {"engine.threads": threads}))


def test_as_many_processes_as_cores_threads_and_memory_allow(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, federation = load_model(finished(), site=None, part=None, model=None)
    few = wanted_of(tiny_federation / "north" / "images", tmp_path)
    many = few * 4

    def places(count: list[Wanted], jobs: int | None = None, threads: int = 1, gpus: tuple[str, ...] = ()) -> Places:
        return choose_places(on(workspace, threads), federation, count, jobs, gpus)

    monkeypatch.setattr(f"{WHERE}.available_cores", lambda: 8)
    monkeypatch.setattr(f"{WHERE}.free_memory", lambda: 10**12)
    assert places(few) == Places(5, True)
    assert places(many) == Places(8, True)
    assert places(many, threads=4) == Places(2, False)
    assert places(few, threads=4) == Places(1, False)  # not worth the start of a program
    assert places(many, jobs=3) == Places(3, True)
    assert places(few, jobs=30) == Places(5, True)
    assert places(many, gpus=("0", "1", "2")) == Places(3, False, ("0", "1", "2"))
    assert places(few, gpus=("0", "1", "2")) == Places(1, False, ("0", "1", "2"))
    needed = image_bytes(workspace, federation, few)
    monkeypatch.setattr(f"{WHERE}.free_memory", lambda: int(3.5 * needed / 0.8))
    assert places(many) == Places(3, True)
    monkeypatch.setattr(f"{WHERE}.free_memory", lambda: 0)
    assert places(many) == Places(1, True)


def test_memory_grows_with_the_largest_image(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    model = load_model(finished("fedavg"), site=None, part=None, model=None)
    small = wanted_of(tiny_federation / "north" / "images", tmp_path)
    Image.new("L", (4000, 3000)).save(tmp_path / "large.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    mixed = [*small, *wanted_of(tmp_path, tmp_path)]
    assert image_bytes(*model, mixed) - image_bytes(*model, small) > 4 * 4000 * 3000
    assert image_bytes(*model, wanted_of(tmp_path / "none", tmp_path)) > 0


def test_several_gpus_are_for_recipes_that_leave_the_choice(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(finished() / "recipe.toml")
    monkeypatch.setattr(f"{WHERE}.visible_gpus", lambda: ("0", "1"))
    found = {name: several_gpus(with_changes(recipe, {"engine.device": name})) for name in ("auto", "cuda", "cpu")}
    assert found == {"auto": ("0", "1"), "cuda": ("0", "1"), "cpu": ()}
    monkeypatch.setattr(f"{WHERE}.visible_gpus", lambda: ("0",))
    assert several_gpus(with_changes(recipe, {"engine.device": "cuda"})) == ()
