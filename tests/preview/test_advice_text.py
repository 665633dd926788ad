"""Advice on a terminal of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from advice_support import NOTHING, VENTRICLE, VESSELS, VOLUMES, row, table
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.exchange.declarations import Shared
from polyclinic.preview.advice import Advice, advise
from polyclinic.preview.advice_cost import MethodCost
from polyclinic.preview.advice_text import print_advice, print_way_on
from polyclinic.preview.evidence import Evidence

NUCLEI = replace(VENTRICLE, polarity="mixed", pictures=True)


def printed(advice: Advice, costs: Mapping[str, MethodCost] | None = None) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    plain = {one.method: MethodCost(1.0, 7_800_000, 7_700_000, 0, {}) for one in advice.methods}
    print_advice(console, "clinics", advice, {**plain, **(costs or {})})
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def words(text: str) -> str:
    """Without the breaks of lines."""
    return " ".join(text.split())


@pytest.mark.parametrize("traits", [VESSELS, NUCLEI, replace(VENTRICLE, middle=(108, 120)), VOLUMES])
@pytest.mark.parametrize(("unseen", "labelled"), [(False, None), (True, None), (False, 6)])
def test_no_line_is_wider_than_the_terminal(traits: FederationTraits, unseen: bool, labelled: int | None) -> None:
    known = Evidence((table(VESSELS, "vessels", row("pathfl", 1, "better")),), {"fedbcs": 1.5})
    text = printed(advise(traits, known, unseen, labelled))
    assert max(map(len, text.splitlines())) <= 80
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_wrapped_reasons_hang_below_their_setting() -> None:
    lines = printed(advise(VESSELS, NOTHING)).splitlines()
    patch = lines.index("data.patch = [96, 96]")
    assert lines[patch + 1].startswith("    structures are about")
    assert lines[patch + 2].startswith("    ")


def test_a_measurement_names_its_reference_with_its_dice_and_what_differs() -> None:
    tables = (
        table(NUCLEI, "nuclei", intensity="full-range"),
        table(NUCLEI, "nuclei", row("fedbn", 2.9, "not shown"), intensity="site"),
    )
    said = words(printed(advise(NUCLEI, Evidence(tables, {}))))
    assert (
        "nuclei: 72.9 Dice, +2.9 [1.9, 3.9] against fedavg with 70.0: not shown (3 seeds, data.intensity = site, "
        "benchmarks/real/nuclei.md)"
    ) in said
    assert "nuclei: 70.0 Dice, the reference of this table (3 seeds, benchmarks/real/nuclei.md)" in said


def test_settings_that_the_nearest_table_had_are_one_short_line() -> None:
    settings = {"data.intensity": "z-score", "training.loss": "dice", "training.rounds": 42}
    known = Evidence((table(VOLUMES, "hippocampus", settings=settings),), {})
    said = "hippocampus was measured with data.intensity = z-score, training.loss = dice, training.rounds = 42."
    assert words(printed(advise(VOLUMES, known))).count(said) == 1
    same = Evidence((table(VOLUMES, "hippocampus"),), {})
    assert "was measured with" not in printed(advise(VOLUMES, same))


def test_a_setting_stays_on_one_line() -> None:
    settings = {"data.intensity": "z-score", "training.loss": "dice-ce-mean", "training.rounds": 42}
    for name in ("h" * length for length in range(1, 40)):
        text = printed(advise(VOLUMES, Evidence((table(VOLUMES, name, settings=settings),), {})))
        assert all(f"{key} = {value}" in text for key, value in settings.items())


def test_a_row_of_another_kind_of_federation_says_so_and_only_stands_for_want_of_one() -> None:
    far, near = table(VENTRICLE, "heart", row("fedbcs", 1, "better")), table(VESSELS, "eyes")
    said = words(printed(advise(VESSELS, Evidence((far, near), {}))))
    assert "heart: 71.0 Dice, +1.0 [0.0, 2.0] against fedavg with 70.0: better (3 seeds, another kind" in said
    assert "heart: 70.0" not in said, "FedAvg was measured on the eyes"


def test_where_nothing_was_measured_that_is_said_once() -> None:
    said = printed(advise(VESSELS, NOTHING, unseen=True))
    assert said.count("No table has tested sites that take no part yet.") == 1
    assert "not measured" not in said


def test_the_ceiling_is_named_as_that() -> None:
    said = printed(advise(VESSELS, Evidence((table(VESSELS, "eyes", row("central", 7, "better")),), {})))
    assert "for orientation only: all images in one place, so images leave the sites" in said
    assert "eyes: 77.0 Dice" in said


def test_a_method_that_is_left_out_says_why() -> None:
    assert "left out of the command: not with patches" in printed(advise(replace(VOLUMES, size=(99, 99, 50)), NOTHING))


def test_bytes_go_both_ways_and_work_is_of_this_recipe() -> None:
    advice = advise(VESSELS, Evidence((), {"fedbcs": 1.5, "pathfl": 1.1}))
    shared = {"cdpa": [Shared("encoder", (2, 768), "mean embedding of each class")]}
    costs = {"fedbcs": MethodCost(1.06, 8_500_000, 8_400_000, 0, shared), "local": MethodCost(1.0, 0, 0, 0, {})}
    said = words(printed(advice, costs))
    assert "leaves a site: weights; cdpa (encoder); 8.5 MB up, 8.4 MB down a round" in said
    assert "1.06 of fedavg's FLOPs (1.50 of FedAvg's time on pictures of 64 x 64, benchmarks/methods_cost.md)" in said
    assert said.count("of FedAvg's time") == 1, "only where FLOPs tell too little"
    assert "leaves a site: nothing work" in said


def test_the_first_line_counts_as_people_do() -> None:
    def first(**changes: object) -> str:
        labelled = changes.pop("budget", None)
        traits = replace(VESSELS, **changes)  # type: ignore[arg-type]
        return printed(advise(traits, NOTHING, labelled=labelled)).splitlines()[0]  # type: ignore[arg-type]

    assert first() == "clinics: 4 sites of 20 to 42 images, 2D, 100% labelled"
    assert first(sites=1, largest_site=20) == "clinics: 1 site of 20 images, 2D, 100% labelled"
    assert first(largest_site=20) == "clinics: 4 sites of 20 images each, 2D, 100% labelled"
    assert first(budget=6).endswith("2D, 6 labels a site for training")


def test_the_middle_is_shown_where_it_leaves_something_out() -> None:
    assert "in the middle 108 x 120 of 192 x 192" in words(
        printed(advise(replace(VENTRICLE, middle=(108, 120)), NOTHING))
    )
    assert "middle" not in printed(advise(replace(VENTRICLE, middle=(192, 192)), NOTHING))


def test_commands_stay_on_one_line() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    command = "polyclinic compare " + "a" * 100
    print_way_on(console, "Recipe: mine.toml", command, "Many runs")
    assert isinstance(console.file, io.StringIO)
    assert f"Then: {command}\n" in console.file.getvalue()
