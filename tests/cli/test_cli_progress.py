from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polyclinic.cli.progress import ScreenObserver


def event(number: int, dice: float | None, *warnings: str) -> dict[str, Any]:
    return {
        "round": number,
        "validation": {"dice": dice},
        "seconds": {"training": 1.25, "validation": 0.5},
        "warnings": list(warnings),
    }


def test_without_a_terminal_every_round_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with ScreenObserver("fedavg") as screen:
        screen.on_start("all", ["north", "south"], 3, 1)
        screen.on_site(1, "north")
        screen.on_round(event(1, 0.25))
        screen.on_round(event(2, None, "[bold]south[/bold] is slow"))
        screen.on_refusal(-1, "south", "failed: [red]no power[/red]", "trace")
        screen.on_message("reading [north]")
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "fedavg: resumed after round 1 of 3",
        "fedavg: round 2/3 val Dice 0.250 (1.8 s)",
        "fedavg: round 3/3 val Dice 0.250 (1.8 s)",
        "round 3: [bold]south[/bold] is slow",
        "before the first round: site south failed: [red]no power[/red]",
        "fedavg: reading [north]",
    ]


def test_a_round_that_finds_nothing_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    with ScreenObserver("fedavg") as screen:
        screen.on_start("all", ["north", "south"], 3, 0)
        screen.on_round({**event(0, 0.0), "stuck": 5, "stuck_sites": {}})
        screen.on_round({**event(1, 0.5), "stuck": 0, "stuck_sites": {"south": 5}})
    assert capsys.readouterr().err.splitlines() == [
        "fedavg: round 1/3 val Dice 0.000 (stuck at background) (1.8 s)",
        "fedavg: round 2/3 val Dice 0.500 (stuck at background at south) (1.8 s)",
    ]


def test_long_preparation_says_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 5.0, 21.0, 21.0, 22.0, 50.0, 50.0])
    monkeypatch.setattr("polyclinic.cli.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    screen = ScreenObserver("fedavg")
    for done in (10, 40, 41, 99):
        screen.on_preparation(done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "fedavg: prepared 40 of 100 images",
        "fedavg: prepared 99 of 100 images",
    ]


def test_a_terminal_gets_a_bar_of_prepared_images_until_they_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ScreenObserver("fedavg") as screen:
        screen.on_preparation(3, 9)
        (bar,) = screen.bar.tasks
        assert (bar.description, bar.completed, bar.total, bar.visible) == ("preparing images", 3, 9, True)
        screen.on_preparation(9, 9)
        assert not bar.visible


def test_a_part_has_its_own_name_and_forgets_the_score_of_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    with ScreenObserver("fedavg") as screen:
        for part, dice in (("fold-1", 0.5), ("fold-2", None)):
            screen.on_start(part, ["north"], 1, 0)
            screen.on_round(event(0, dice))
    assert capsys.readouterr().err.splitlines() == [
        "fedavg fold-1: round 1/1 val Dice 0.500 (1.8 s)",
        "fedavg fold-2: round 1/1 (1.8 s)",
    ]


def test_a_terminal_gets_a_bar_for_every_part_with_the_site_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ScreenObserver("fedavg") as screen:
        screen.on_start("all", ["north", "south"], 3, 1)
        (bar,) = screen.bar.tasks
        assert (bar.description, bar.completed, bar.total, bar.fields["note"]) == ("fedavg", 1, 3, "2 sites")
        screen.on_round(event(1, 0.25))
        screen.on_site(2, "north")
        assert (bar.completed, bar.fields["note"]) == (2, "val Dice 0.250 north")
        screen.on_rollback(1)
        assert bar.completed == 1


def test_a_site_before_the_start_is_no_error() -> None:
    screen = ScreenObserver("fedavg")
    screen.on_site(0, "north")
    screen.on_round(event(0, None))
    assert screen.bar.tasks == []
