from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from polyclinic.report.live_screen import duration, news, result, screen, silence, state

NOW = 1_000_000.0


def a_view(**more: Any) -> dict[str, Any]:
    site = {
        "status": "training",
        "since": NOW - 80,
        "loss": 0.5,
        "dice": 0.75,
        "bytes_up": 23_330_000,
        "bytes_down": 4e7,
    }
    return {
        "method": "fedbcs(levels=[0,1])", "federation": "nuclei", "engine": "flower", "part": "all", "round": 1,
        "rounds": 3, "started": NOW - 200, "updated": NOW - 2, "finished": False, "dice": 0.512, "best_round": 1,
        "best_dice": 0.512, "seconds": 90.0, "sites": {"north": site, "south": {"status": "waiting"}},
        "lines": ["reading north"], "said": 1, **more,
    }  # fmt: skip


def shown(view: dict[str, Any], now: float = NOW, note: str = "", width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(screen(view, now, note))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_the_screen() -> None:
    lines = shown(a_view())
    assert lines[0] == "fedbcs(levels=[0,1]) on nuclei, engine flower", "brackets are no markup"
    assert lines[1].split(" ", 1)[1].strip() == "round 1/3 done, elapsed 3 min 20 s, last round 1 min 30 s"
    assert lines[2] == "validation Dice 0.512 (best 0.512 in round 1)"
    assert [line.split() for line in lines[4:7]] == [
        ["site", "status", "loss", "Dice", "MB", "up", "MB", "down"],
        ["north", "training", "1", "min", "20", "s", "0.500", "0.750", "23.33", "40.00"],
        ["south", "waiting", "-", "-", "0.00", "0.00"],
    ]
    assert lines[7:] == ["", "reading north"]


def test_problems_have_a_column_and_colours() -> None:
    view = a_view()
    view["sites"]["south"] = {"status": "late", "since": NOW - 5, "reason": "failed: is late: no answer within 600 s"}
    text = " ".join(" ".join(shown(view)).split())
    assert "last problem" in text
    for word in ("late 5 s", "failed:", "600 s"):
        assert word in text
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system="standard", highlight=False).print(screen(view, NOW))
    assert "\x1b[33mlate" in file.getvalue()
    assert "\x1b[36mtraining" in file.getvalue()


def test_a_site_cannot_take_over_the_terminal() -> None:
    view = a_view(lines=["\x1b[2Jgone\r\n\x07"], method="[red]\x1b]0;title\x07")
    view["sites"]["no\x1b[1Am"] = {"status": "\x1b[31mbad", "reason": "x\x9b2J"}
    for text in ("".join(shown(view)), "".join(news(None, (view, NOW, "a\x1bb")))):
        assert not {"\x1b", "\x07", "\r", "\x9b"} & set(text)
    assert shown(view)[0].startswith("[red]")


def test_the_empty_view_of_another_version_can_be_shown() -> None:
    assert "not started" in " ".join(shown({"sites": {}}))
    assert shown({"sites": {"a": {}}})


def test_silence_is_said_but_not_of_a_run_that_is_over() -> None:
    words = "no news for 5 min; is the server still running?"
    assert silence(a_view(), NOW) == ""
    assert silence(a_view(), NOW + 298) == words
    assert shown(a_view(), NOW + 298)[-1] == words
    assert silence(a_view(seconds=3600.0), NOW + 298) == "", "rounds of an hour are no silence"
    assert silence(a_view(seconds=3600.0), NOW + 7200) == "no news for 2 h 0 min; is the server still running?"
    for over in ({"finished": True}, {"stopped": "interrupted"}):
        assert silence(a_view(**over), NOW + 9999) == ""


def test_the_end() -> None:
    done = a_view(finished=True, average={"dice": 0.7312, "dice/disc": 0.5, "hd95": 12.341, "asd": None})
    words = "Finished; average over sites (overlaps in %): dice 73.12, hd95 12.34, asd -"
    assert result(done, NOW) == words
    assert "elapsed 3 min 18 s" in shown(done, NOW + 9999)[1], "the clock stands still"
    assert "training 1" not in " ".join(shown(done)), "how long is no question any more"
    stopped = a_view(stopped="interrupted")
    assert result(stopped, NOW) == "Stopped 2 s ago: interrupted (go on with --resume)"
    assert result(a_view(stopped="Mend it and use --resume."), NOW) == "Stopped 2 s ago: Mend it and use --resume."
    assert result(a_view(), NOW) == ""
    assert shown(a_view(note="from the record"), note="connection refused")[-2:] == [
        "from the record",
        "connection refused",
    ]


def test_news_are_told_once() -> None:
    first = (a_view(), NOW, "")
    line = "round 1/3 done, validation Dice 0.512 (best 0.512 in round 1); training: north; waiting: south"
    assert news(None, first) == ["fedbcs(levels=[0,1]) on nuclei, engine flower", "reading north", line]
    assert state(a_view()) == line
    assert news(first, (a_view(), NOW + 60, "")) == [], "time alone is no news"
    more = a_view(lines=["reading north", "b", "c"], said=3)
    assert news(first, (more, NOW, "")) == ["b", "c"]
    assert news((more, NOW, ""), (a_view(), NOW, "")) == ["reading north"], "a run that was started anew"
    assert news(first, (a_view(), NOW, "lost")) == ["lost"]
    assert news((a_view(), NOW, "lost"), (a_view(), NOW, "lost")) == []
    quiet = (a_view(), NOW + 400, "")
    assert news(first, quiet) == ["no news for 6 min; is the server still running?"]
    assert news(quiet, (a_view(), NOW + 500, "")) == []
    assert news(first, (a_view(part="fold-2"), NOW, ""))[0].endswith("engine flower, part fold-2")


def test_many_sites_are_counted() -> None:
    sites = {f"s{number}": {"status": "done" if number else "late"} for number in range(30)}
    assert state(a_view(sites=sites, dice=None)) == "round 1/3 done; late: 1; done: 29"
    assert "pooled" in state(a_view(sites={"@pooled": {"status": "done"}}))
    assert "@" not in state(a_view(sites={"@pooled": {"status": "done"}}))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (80, "1 min 20 s"), (300, "5 min"),
        (3599, "59 min"), (3600, "1 h 0 min"), (11_100, "3 h 5 min"), (187_200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_run_that_finds_nothing_says_so_on_the_screen_and_in_the_lines() -> None:
    (line,) = [line for line in shown(a_view(stuck=7), width=120) if "stuck" in line]
    assert line == "stuck: nothing found in the last 7 validated rounds; see docs/explanation/training.md"
    assert not any("stuck" in line for line in shown(a_view()))
    assert "; stuck at background; " in state(a_view(stuck=7))


def test_a_site_that_finds_nothing_is_named_on_the_screen_and_in_the_lines() -> None:
    view = a_view(stuck=0)
    view["sites"]["so\x1buth"] = {"status": "waiting", "stuck": 6}
    assert shown(view, width=140)[-1] == (
        "stuck: nothing found at so uth (last 6 validated rounds), while other sites found something; "
        "see docs/explanation/training.md"
    )
    assert "; stuck at background at so uth; training: north" in state(view)
