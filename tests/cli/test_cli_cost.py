from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli.cost import _about_count, _column, _numbers, _remarks, _short
from support import call

# The tiny recipe's U-Net: 3x3 convolutions before 10 norms, two transposed ones of 2x2, one of 1x1, all with biases.
CHANNELS = 2 * (2 + 4 + 8) + 2 * (4 + 2)
ENCODER = 9 * (1 * 2 + 2 * 2 + 2 * 4 + 4 * 4 + 4 * 8 + 8 * 8)
DECODER = 4 * (8 * 4 + 4 * 2) + 9 * (8 * 4 + 4 * 4 + 4 * 2 + 2 * 2)
PARAMETERS = ENCODER + DECODER + (CHANNELS + 4 + 2) + 2 * CHANNELS + (2 * 2 + 2)
# Batch norms also send means and variances of 4 bytes and a count of 8 bytes each.
BYTES = 4 * PARAMETERS + 2 * 4 * CHANNELS + 10 * 8


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_table_fits_80_columns_and_says_what_its_numbers_are(tiny_recipe_file: Path) -> None:
    wanted = "fedavg, fedplvm, central, local, fedbcs(levels=[0,1])"
    done = call("cost", tiny_recipe_file, "--methods", wanted, "--repeats", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[:3]] == [
        ["FLOPs", "FLOPs", "FLOPs", "round", "params", "time", "time", "bytes", "bytes"],
        ["predict", "train", "server", "ratio", "all", "predict", "train", "up", "down"],
        ["method", "k", "k", "k", "k", "ms", "ms", "kB", "kB"],
    ]
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:8]}
    assert rows.keys() >= {"fedavg", "fedplvm", "central", "local"}
    assert (PARAMETERS, BYTES) == (1966, 8264)
    assert float(rows["fedavg"][2]) == 0
    assert rows["fedavg"][3:5] == ["1.00", "1.966"]
    assert float(rows["fedplvm"][2]) > 0, "the server clusters"
    assert float(rows["fedplvm"][3]) > 1
    assert rows["fedavg"][-2:] == ["8.26", "8.26"]
    assert rows["fedplvm"][-2:] == ["8.26+", "8.26+"]
    assert rows["central"][-2:] == ["images", "-"]
    assert rows["local"][-2:] == ["0.00", "0.00"]
    text = " ".join(done.out.split())
    assert "fedbcs(levels=[0" in text, "brackets are no markup"
    for words in (
        "unet on tiny, for one image of 1x16x16.",
        "FLOPs: counted by torch, convolutions, matrix products and attention, 2 FLOPs for each multiplication",
        "Not counted: normalisation,",
        "Fourier transforms",
        "time: for one image, measured here, median of 2 turns on cpu with 1 thread; "
        "predict in a batch of 1, train in a batch of 2, without augmentation.",
        "bytes: of a site in a round, as declared;",
        "+ fedplvm: and what is only known at run time, local_clusters up (",
        "fedplvm: besides the steps a round has",
        "server: in a round of 2 sites. ratio: all FLOPs of a round, at the sites and the server, over those of fedavg",
    ):
        assert words in text
    assert "+ fedavg" not in text
    assert "fedavg: besides" not in text


def test_the_recipes_own_method_and_all_data_as_json(tiny_recipe_file: Path) -> None:
    done = call("cost", tiny_recipe_file, "--json", "--repeats", "1", "--set", "method=fedprox", "--set", "seed=3")
    facts = json.loads(done.out)
    (row,) = facts["methods"]
    assert row["method"] == "fedprox"
    assert facts["timed"] | {"torch": ""} == {
        "inference": "batch of 1", "training": "batch of 2", "device": "cpu", "threads": 1, "repeats": 1, "torch": "",
    }  # fmt: skip
    assert row["ratio"] == 1
    assert (facts["federation"], facts["sites"], facts["network"], facts["batch_size"]) == ("tiny", 2, "unet", 2)
    assert row["bytes"]["up"] == {"weights": BYTES, "declared": 0, "run_time": {}, "measured": None}
    for kind in ("inference", "training"):
        assert row["seconds"][kind]["median"] == row["seconds"][kind]["all"][0] > 0
    assert row["seconds"]["not_timed"] is None
    assert done.err.splitlines() == [
        "fedprox (1 of 1): counting two rounds on noise",
        "timing 1 steps and predictions of each method",
    ]


def test_what_is_not_timed_has_a_dash_and_a_word(tiny_recipe_file: Path) -> None:
    done = call("cost", tiny_recipe_file, "--methods", "fedavg", "--seconds-limit", "0")
    assert done.code == 0, done.err
    header, row = done.out.splitlines()[1].split(), done.out.splitlines()[3].split()
    assert header[:4] == ["predict", "train", "server", "all"], "one method has no ratio"
    assert row[5:7] == ["-", "-"]
    assert "fedavg: not timed, not asked for." in done.out
    assert "timing" not in done.err


def test_frozen_weights_bring_a_column_and_fewer_rehearsed_sites_a_line() -> None:
    flops = {"inference": 1, "training": 100, "server": 5, "site_besides_steps": 0, "rehearsed_sites": 8}
    row: dict[str, Any] = {
        "method": "pathfl", "flops": {**flops, "scaled": None, "by_value": False, "rehearsed": [8]}, "ratio": 1.0,
        "parameters": 10, "trainable": 4, "images_leave": False,
        "seconds": {kind: {"median": None} for kind in ("inference", "training")} | {"not_timed": None},
        "bytes": {way: {"weights": 0, "declared": 0, "run_time": {}, "measured": None} for way in ("up", "down")},
    }  # fmt: skip
    assert "params trained" in _numbers([row])
    assert "params trained" not in _numbers([{**row, "trainable": 10}])
    facts = {"batch_size": 2, "sites": 16}
    assert _remarks(row, facts) == ["pathfl: the server's work is that of a round of 8 sites."]
    assert _remarks(row, facts | {"sites": 8}) == []


def test_what_shapes_left_open_is_said() -> None:
    flops = {"rehearsed": [32, 32], "scaled": None, "by_value": False}
    assert _about_count({"method": "moon", "flops": flops}) == []
    (line,) = _about_count({"method": "fpl", "flops": flops | {"by_value": True}})
    assert line == "fpl: numbers of clusters, pixels and the like are those of noise of 32x32."
    (line,) = _about_count({"method": "odd", "flops": flops | {"scaled": "ValueError: no"}})
    assert "those of images of 32x32" in line
    assert line.endswith("by shape they cannot be counted, ValueError: no.")


def test_a_measured_round_leaves_no_plus_and_no_file(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = call("cost", tiny_recipe_file, "--methods", "fedplvm", "--measure", "--repeats", "1")
    assert done.code == 0, done.err
    assert "bytes: of a site in a round, measured, mean of the sites;" in " ".join(done.out.split())
    assert "+" not in done.out
    # PyTorch makes a folder for its compiler when a count of FLOPs imports it.
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "fedavg,fedbnn"), "'fedbnn' is not a method, did you mean 'fedbn'?"),
        (("--methods", "fedavg,fedavg"), "--methods: 'fedavg' is there twice"),
        (("--methods", ","), "--methods: name at least one method"),
        (("--set", "network.width=0"), "network.width = 0 is not possible"),
        (("--set", "network.name=unett"), "network.name = 'unett' is not a network, did you mean 'unet'?"),
        (("--set", "data.size=[4,4]"), "Images of size [4, 4] are too small for this network"),
        (("--set", "federation=/nowhere"), "/nowhere: no such folder"),
    ],
)
def test_wrong_input_gets_a_sentence(arguments: tuple[str, ...], words: str, tiny_recipe_file: Path) -> None:
    done = call("cost", tiny_recipe_file, *arguments)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert line[-1] in ".?"


def test_wrong_usage_shows_the_usage(tiny_recipe_file: Path) -> None:
    for arguments in ((), (tiny_recipe_file, "--repeats", "0"), (tiny_recipe_file, "--fast")):
        done = call("cost", *arguments)
        assert done.code == 2
        assert "Usage: polyclinic cost" in done.err
    assert call("cost", "demo-nucleii").err.startswith("error: demo-nucleii: neither a recipe file nor")


def test_help_is_instant_and_fits() -> None:
    done = call("cost", "--help")
    assert max(map(len, done.out.splitlines())) <= 80
    for word in ("RECIPE", "--methods", "--set", "--measure", "--repeats", "--seconds-limit", "--json"):
        assert word in done.out
    code = (
        "import sys; from polyclinic.cli import main; sys.argv = ['polyclinic', 'cost', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'monai', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120).returncode == 0


def test_short_numbers() -> None:
    shown = {
        0: "0",
        7: "7",
        999: "999",
        1000: "1.000 k",
        999_949: "999.9 k",
        999_951: "1.000 M",
        16_277_897_216: "16.28 G",
    }
    assert {number: _short(number) for number in shown} == shown
    assert _short(3.2e15) == "3200. T"
    assert (_short(20, "B"), _short(7_776_264, "B")) == ("20 B", "7.776 MB")


def test_a_column_has_one_unit() -> None:
    assert _column("bytes up", [7_776_264, 7_781_234, 0]) == ("MB", ["7.776", "7.781", "0.000"])
    assert _column("FLOPs train", [999_951]) == ("M", ["1.000"])
    assert _column("params all", [123_456, 9]) == ("k", ["123.5", "0.0"])
    assert _column("params all", [900, 9]) == ("", ["900", "9"])
    assert _column("time train", [2.5, 0.0123456, None]) == ("ms", ["2500.00", "12.35", "-"])
    assert _column("time train", [250, 12.04]) == ("s", ["250.0", "12.0"])
    assert _column("time train", [None]) == ("ms", ["-"])
    assert _column("round ratio", [1.0, 12.345]) == ("", ["1.00", "12.35"])
