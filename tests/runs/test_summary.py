"""``summary.json``: the keys that others rely on, and valid JSON whatever the numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import polyclinic
from polyclinic.runs.summary import late_rise, optimiser_steps, stuck_parts
from support import write_tiny_federation, write_tiny_recipe


def strict(path: Path) -> dict[str, Any]:
    """JSON without the constants that only Python knows."""

    def refuse(constant: str) -> None:
        pytest.fail(f"{path.name} holds {constant}")

    return dict(json.loads(path.read_text(), parse_constant=refuse))


def test_the_promised_keys_are_there(finished: Callable[..., Path]) -> None:
    summary = strict(finished("fedprox(mu=0.5)") / "summary.json")
    assert summary["method"] == "fedprox(mu=0.5)"
    assert (summary["federation"], summary["engine"], summary["seed"], summary["rounds"]) == ("tiny", "auto", 0, 3)
    assert {"dice", "hd95"} <= summary["average"].keys() == summary["sites"]["north"].keys()
    assert list(summary["sites"]) == ["north", "south"]
    assert summary["bytes_up"] > 0 < summary["bytes_down"]
    assert summary["seconds"] == pytest.approx(sum(summary["seconds_by_phase"].values()))
    assert summary["seconds_by_phase"].keys() == {"training", "validation", "test"}
    assert summary["components"][1] == {"component": "proximal", "level": "objective", "settings": {"mu": 0.5}}
    assert summary["images_leave"] is False
    assert summary["refused"] == 0
    assert summary["steps"] == 3 * 2 * (2 + 1), "rounds, epochs, batches of two of the sites' three and two images"
    assert "stuck" not in summary


def test_local_moves_no_byte_and_central_says_that_images_leave(finished: Callable[..., Path]) -> None:
    local, central = (strict(finished(method) / "summary.json") for method in ("local", "central"))
    assert (local["bytes_up"], local["bytes_down"], local["images_leave"]) == (0, 0, False)
    assert (central["bytes_up"], central["bytes_down"], central["images_leave"]) == (0, 0, True)


def test_values_that_a_policy_leaves_out_become_null(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "fed")
    for path in (federation / "south" / "labels").iterdir():
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(path)
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    overrides = ["policies.empty_masks=ignore", "protocol.transfer=true"]
    run = polyclinic.run(recipe, out=tmp_path / "run", overrides=overrides).folder
    summary = strict(run / "summary.json")
    assert summary["sites"]["south"]["dice"] is None
    assert summary["average"]["dice"] == summary["sites"]["north"]["dice"] is not None
    assert summary["transfer"]["all"]["north"]["south"] is None
    strict(run / "checkpoints" / "all" / "tested.json")


def test_classes_are_reported_one_by_one_when_there_are_several(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "fed")
    (federation / "federation.toml").write_text('classes = ["background", "disc", "core"]\nchannels = 1\n')
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    summary = polyclinic.run(recipe, out=tmp_path / "run", overrides=["evaluation.metrics=['dice']"]).summary
    assert list(summary["average"]) == ["dice", "dice/disc", "dice/core"]


def test_steps_are_unknown_where_a_round_of_an_earlier_version_is_in_the_record() -> None:
    events = [{"steps": {"a": 2, "b": 3}}, {"steps": {"a": 2}}]
    assert optimiser_steps(events) == 7
    assert optimiser_steps([*events, {}]) is None


def test_a_part_that_found_nothing_for_long_is_named_with_how_long() -> None:
    counts = {"fold-1": [0, 5, 6, 0], "fold-2": [0, 0, 0, 0], "fold-3": [5, 0, 5, 6]}
    events = [{"part": part, "stuck": count} for part, found in counts.items() for count in found]
    assert stuck_parts(events) == {
        "fold-1": {"longest": 6, "at_end": 0},
        "fold-3": {"longest": 6, "at_end": 6},
    }
    assert stuck_parts([{"part": "all"}]) == {}


def test_sites_that_found_nothing_for_long_stand_beside_the_part() -> None:
    found: list[dict[str, int]] = [{}, {"south": 5}, {"south": 6, "west": 5}, {"west": 6}]
    events = [{"part": "all", "stuck": 0, "stuck_sites": sites} for sites in found]
    sites = {"south": {"longest": 6, "at_end": 0}, "west": {"longest": 6, "at_end": 6}}
    assert stuck_parts(events) == {"all": {"longest": 0, "at_end": 0, "sites": sites}}
    older = {"part": "fold-2", "stuck": 5}
    assert stuck_parts([*events, older])["fold-2"] == {"longest": 5, "at_end": 5}


def validated(dice: list[float | None], part: str = "all") -> list[dict[str, Any]]:
    return [{"part": part, "round": number, "validation": {"dice": value}} for number, value in enumerate(dice)]


def test_the_late_rise_is_the_last_validation_minus_that_before_the_last_third() -> None:
    assert late_rise(validated([0.1, 0.2, 0.3, 0.5, 0.6, 0.7])) == {"dice": pytest.approx(0.7 - 0.5)}
    every_third = [None, None, 0.3, None, None, 0.4, None, None, 0.6]
    assert late_rise(validated(every_third)) == {"dice": pytest.approx(0.6 - 0.4)}
    assert late_rise(validated([None, 0.5])) == late_rise(validated([0.5])) == late_rise([]) == {}, "nothing before"
    parts = validated([0.1, 0.2, 0.4], "fold-1") + validated([0.3, 0.3, 0.3], "fold-2") + validated([0.9], "fold-3")
    assert late_rise(parts) == {"dice": pytest.approx(0.1)}, "the mean over the parts that tell"
