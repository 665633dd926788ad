from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.core.files import write_json
from polyclinic.report.page.live_section import grid_html, run_html
from polyclinic.report.page.results import read_results
from report_support import write_grid

NOW = 1_000_000.0


def a_view(**more: Any) -> dict[str, Any]:
    site = {"status": "training", "since": NOW - 80, "loss": 0.5, "dice": None, "bytes_up": 2e6, "bytes_down": 4e6}
    return {
        "method": "fedavg", "federation": "tiny", "engine": "flower", "part": "all", "round": 1, "rounds": 4,
        "started": NOW - 100, "updated": NOW - 1, "dice": 0.75, "sites": {"<b>north": site}, **more,
    }  # fmt: skip


def test_a_run_shows_its_rounds_and_what_each_site_does() -> None:
    html = run_html(a_view(), NOW, "the server is slow")
    for words in (
        "round 1 of 4 done",
        "for 1 min 40 s",
        "validation Dice 0.750",
        "training 1 min 20 s",
        "&lt;b&gt;north",
    ):
        assert words in html
    assert '<progress max="4" value="1"' in html
    assert "the server is slow" in html
    assert "last problem" not in html


def test_the_end_and_problems_are_said() -> None:
    view = a_view(stopped="no space is left")
    view["sites"]["<b>north"]["reason"] = "is away"
    html = run_html(view, NOW)
    assert "Stopped 1 s ago: no space is left" in html
    assert '<td class="name">is away</td>' in html
    assert "training</td>" in html, "a run that is over shows no time that goes on"


def test_a_stuck_run_is_a_remark_with_its_sites() -> None:
    assert "stuck: nothing found in the last 7 validated rounds" in run_html(a_view(stuck=7), NOW)
    view = a_view(stuck=0)
    assert "stuck" not in run_html(view, NOW)
    view["sites"]["<b>north"]["stuck"] = 6
    assert "stuck: nothing found at &lt;b&gt;north (last 6 validated rounds), while other" in run_html(view, NOW)


def test_a_stuck_run_of_a_grid_says_so_in_its_row(tmp_path: Path) -> None:
    stuck = {"stuck": {"all": {"longest": 9, "at_end": 0, "sites": {"north": {"longest": 5, "at_end": 5}}}}}
    methods = ("fedavg", "fedbn", "fedprox")
    folder = write_grid(tmp_path, methods, seeds=(0,), missing=[("fedbn", 0), ("fedprox", 0)], **stuck)
    write_json(folder / "m1-seed0" / "live.json", {"round": 6, "rounds": 9, "stuck": 5})
    write_json(folder / "m2-seed0" / "live.json", {"round": 6, "rounds": 9, "sites": {"south": {"stuck": 5}}})
    html = grid_html(read_results(folder))
    for words in (
        "finished, stuck at background for 9 validated rounds; stuck at background at north (5 validated rounds, to",
        ">running, stuck at background<",
        ">running, stuck at background at south<",
    ):
        assert words in html


def test_a_grid_shows_how_far_each_run_is(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg", "fedbn", "fedprox"), seeds=(0,), missing=[("fedbn", 0), ("fedprox", 0)])
    write_json(folder / "m1-seed0" / "live.json", {"round": 1, "rounds": 4})
    html = grid_html(read_results(folder))
    assert "1 of 3 runs finished" in html
    assert '<progress max="3.0" value="1.25"' in html
    for words in ("finished", "running", "1 of 4", "waiting"):
        assert f">{words}<" in html
