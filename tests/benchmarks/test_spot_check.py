"""The spot check of Dice and HD95: right values agree with naive ones, and a wrong one is found and named."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from polyclinic import run
from polyclinic.core.errors import PolyclinicError
from support import write_tiny_recipe, write_volumes

REAL = Path(__file__).resolve().parents[2] / "benchmarks" / "real"


@pytest.fixture
def spot_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REAL))
    sys.modules.pop("spot_check", None)
    import spot_check

    return spot_check


def surface(mask: np.ndarray) -> list[tuple[int, ...]]:
    """Voxels of a mask with a face neighbour that is not in it, or not in the image."""
    inside = set(map(tuple, np.argwhere(mask).tolist()))
    steps = [
        tuple(sign * (axis == other) for other in range(mask.ndim)) for axis in range(mask.ndim) for sign in (-1, 1)
    ]
    return [
        p for p in inside if any(tuple(a + b for a, b in zip(p, step, strict=True)) not in inside for step in steps)
    ]


def directed_percentile(
    source: list[tuple[int, ...]], target: list[tuple[int, ...]], spacing: Sequence[float]
) -> float:
    """The 95th percentile of the distances to the nearest voxel, between ranks in proportion."""
    distances = sorted(min(math.dist(scaled(p, spacing), scaled(q, spacing)) for q in target) for p in source)
    rank = 0.95 * (len(distances) - 1)
    below, above = distances[math.floor(rank)], distances[math.ceil(rank)]
    return below + (rank - math.floor(rank)) * (above - below)


def scaled(voxel: tuple[int, ...], spacing: Sequence[float]) -> list[float]:
    return [place * step for place, step in zip(voxel, spacing, strict=True)]


def naive(predicted: np.ndarray, true: np.ndarray, spacing: Sequence[float]) -> dict[str, float]:
    both = sum(1 for place in np.ndindex(true.shape) if predicted[place] and true[place])
    one, other = surface(predicted), surface(true)
    return {
        "dice": 2 * both / (int(predicted.sum()) + int(true.sum())),
        "hd95": max(directed_percentile(one, other, spacing), directed_percentile(other, one, spacing)),
    }


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on volumes whose voxels are no cubes and whose first axis runs to the left, and its federation."""
    folder = tmp_path_factory.mktemp("volumes")
    federation = write_volumes(folder / "balls", np.diag([-1.5, 2.0, 3.0, 1.0]))
    recipe = write_tiny_recipe(folder / "recipe.toml", federation)
    return run(recipe, out=folder / "run", overrides=["data.patch=[8,8,8]", "engine.name=inprocess"]).folder, federation


def changed(folder: Path, out: Path, metric: str, value: str) -> tuple[Path, tuple[str, ...]]:
    """A copy of a run with another value in the first row of a metric, and site, image and class of that row."""
    copy = shutil.copytree(folder, out)
    lines = (copy / "cases.csv").read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if f",{metric}," in line)
    cells = lines[number].split(",")
    lines[number] = ",".join([*cells[:-1], value])
    (copy / "cases.csv").write_text("\n".join(lines) + "\n")
    return copy, (cells[0], cells[2], cells[3])


def test_right_values_agree(
    spot_check: ModuleType, finished: Callable[..., Path], tiny_federation: Path, volumes: tuple[Path, Path]
) -> None:
    package = spot_check.Package("naive", naive)
    for folder, federation in ((finished("fedavg"), tiny_federation), volumes):
        (found,) = spot_check.check(folder, federation.parent, [package])
        assert found.cases == 2
        assert found.left_out == 0
        for metric, tolerance in (("dice", 1e-12), ("hd95", 1e-9)):
            assert len(found.apart[metric]) == 2
            assert max(found.apart[metric].values()) < tolerance
        assert not found.wrong()


def test_distances_are_those_of_the_files_spacing(spot_check: ModuleType, volumes: tuple[Path, Path]) -> None:
    """What the test above says of volumes is not true by chance: with voxels of 1 mm their HD95 would be another."""

    def without_spacing(predicted: np.ndarray, true: np.ndarray, spacing: Sequence[float]) -> dict[str, float]:
        assert spacing == pytest.approx([1.5, 2.0, 3.0])
        return naive(predicted, true, [1.0, 1.0, 1.0])

    folder, federation = volumes
    (found,) = spot_check.check(folder, federation.parent, [spot_check.Package("naive", without_spacing)])
    assert {metric for metric, *_ in found.wrong()} == {"hd95"}


@pytest.mark.parametrize(("metric", "value"), [("dice", "0.123"), ("hd95", "77.5"), ("dice", "nan"), ("hd95", "nan")])
def test_a_wrong_value_is_found_and_named(
    spot_check: ModuleType,
    finished: Callable[..., Path],
    tiny_federation: Path,
    tmp_path: Path,
    metric: str,
    value: str,
) -> None:
    folder, place = changed(finished("fedavg"), tmp_path / "run", metric, value)
    (found,) = spot_check.check(folder, tiny_federation.parent, [spot_check.Package("naive", naive)])
    ((wrong_metric, key, gap),) = found.wrong()
    assert (wrong_metric, key) == (metric, place)
    assert gap > 0.01
    if metric == "hd95":
        (other,) = spot_check.check(folder, tiny_federation.parent, [spot_check.Package("pooled", naive, False)])
        assert not other.wrong(), "another definition may give another value"


def test_the_page_and_the_end_of_the_command(
    spot_check: ModuleType,
    finished: Callable[..., Path],
    tiny_federation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = finished("fedavg")
    wrong, place = changed(right, tmp_path / "wrong", "dice", "0.123")
    monkeypatch.setattr(spot_check, "packages", lambda: [spot_check.Package("naive 1.0", naive)])
    monkeypatch.setenv("POLYCLINIC_REAL_DATA", str(tiny_federation.parent))
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["spot_check.py", str(right), "--out", str(out)])
    spot_check.main()
    row = next(line for line in out.read_text().splitlines() if "naive 1.0" in line)
    assert [cell.strip() for cell in row.split("|")[2:7]] == ["2", "1", "2", "0", "naive 1.0"]
    monkeypatch.setattr(sys, "argv", ["spot_check.py", str(right), str(wrong), "--out", str(out)])
    with pytest.raises(SystemExit, match=f"wrong: dice of {', '.join(place)} is 0"):
        spot_check.main()
    assert out.read_text().count("naive 1.0") == 2


def test_what_cannot_be_checked_gets_a_sentence(
    spot_check: ModuleType,
    finished: Callable[..., Path],
    tiny_federation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, numbers = finished("fedavg"), itertools.count()

    def refused(expected: str, change: Callable[[Path], object], data: Path = tiny_federation.parent) -> None:
        folder = shutil.copytree(whole, tmp_path / str(next(numbers)))
        change(folder)
        with pytest.raises(PolyclinicError, match=expected):
            spot_check.check(folder, data, [spot_check.Package("naive", naive)])

    def replace(file: str, old: str, new: str) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            text = (folder / file).read_text()
            assert old in text
            (folder / file).write_text(text.replace(old, new))

        return change

    refused("not a finished run", lambda folder: (folder / "summary.json").unlink())
    refused("no weights", lambda folder: shutil.rmtree(folder / "checkpoints"))
    refused("in cases.csv or split.csv alone", replace("split.csv", ",train", ",test"))
    refused("crops or resamples", replace("recipe.toml", "[data]", "[data]\ncrop = [8, 8]"))
    refused("holds no NIfTI volume or picture", lambda folder: None, tmp_path)
    monkeypatch.setattr(spot_check, "sitk", None)
    monkeypatch.setattr(sys, "argv", ["spot_check.py", str(whole), "--data", str(tmp_path)])
    with pytest.raises(SystemExit):
        spot_check.main()
    assert "pip install SimpleITK" in capsys.readouterr().err


def test_images_that_were_resized_are_refused(
    spot_check: ModuleType, finished: Callable[..., Path], tiny_federation: Path
) -> None:
    """Their scores are of another grid than that of the mask files."""
    folder = finished("fedavg", "data.size=[32,32]")
    with pytest.raises(PolyclinicError, match=r"data.size = \[32, 32\]"):
        spot_check.check(folder, tiny_federation.parent, [spot_check.Package("naive", naive)])


def test_simpleitk_measures_what_is_said_of_it(spot_check: ModuleType) -> None:
    """Masks that reach the border, have holes and lie far apart, on voxels that are no cubes."""
    pytest.importorskip("SimpleITK", reason="SimpleITK is not installed: pip install SimpleITK")
    rng = np.random.default_rng(0)
    for shape, spacing in (((9, 7), (1.0, 2.5)), ((6, 5, 7), (1.5, 0.7, 3.0))):
        for share in (0.02, 0.5, 0.9, 1.0):
            predicted, true = (rng.random(shape) < share for _ in range(2))
            predicted[(0,) * len(shape)] = true[(-1,) * len(shape)] = True
            assert spot_check.by_simpleitk(predicted, true, spacing) == pytest.approx(naive(predicted, true, spacing))
