"""Reports in a real browser: they open offline, are inert, can be read by everybody, and do what their buttons say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from browser_support import chromium, low_contrast, opened, wait_for  # noqa: F401 (fixtures)
from polyclinic.core.files import write_json
from polyclinic.report.page.live_page import watched_folder
from polyclinic.report.page.results import read_results
from polyclinic.report.page_server import PageServer
from polyclinic.report.report_file import write_report
from report_support import HOSTILE, round_event, write_gallery, write_grid, write_run, write_study

Open = Callable[..., Any]
METHODS = ("fedavg", "fedbn", "fedprox(mu=0.1)")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with everything: pictures with slices, features, refusals, and a site with a hostile name."""
    folder, sites = tmp_path_factory.mktemp("grid"), (HOSTILE, "south")
    write_grid(folder, METHODS, sites=sites)
    events = [round_event(0, 0, 0, sites), round_event(0, 0, 1, sites, refused={HOSTILE: HOSTILE}, warnings=[HOSTILE])]
    (folder / "m0-seed0" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    write_gallery(folder, METHODS, sites)
    return write_report(read_results(folder), folder / "report.html").report


def first_column(page: Any) -> list[str]:
    rows = page.locator("#scores table.sortable").first.locator("tbody th")
    return [text.strip() for text in rows.all_inner_texts()]


def test_a_table_sorts_by_any_column_and_says_so(grid: Path, opened: Open) -> None:  # noqa: F811
    page = opened(grid.as_uri())
    assert first_column(page) == list(METHODS)
    assert page.title() == "Which method segments tiny best?"
    head = page.locator("#scores table.sortable").first.locator("thead th")
    average = head.filter(has_text="average")
    for order, expected in (("descending", METHODS[::-1]), ("ascending", METHODS)):
        average.locator("button").click()
        assert average.get_attribute("aria-sort") == order
        assert first_column(page) == list(expected)
    head.first.locator("button").press("Enter")
    assert (head.first.get_attribute("aria-sort"), average.get_attribute("aria-sort")) == ("ascending", "none")


def test_every_chart_is_drawn_and_a_method_can_be_hidden_in_all_of_them(grid: Path, opened: Open) -> None:  # noqa: F811
    page = opened(grid.as_uri())
    plots = page.locator(".plot")
    assert plots.count() >= 7
    assert page.locator(".plot:not(:has(svg.main-svg))").count() == 0
    shown = "() => [...document.querySelectorAll('.plot')].map((p) => p._fullData.filter((t) => t.visible).length)"
    before = page.evaluate(shown)
    page.locator(".chips button", has_text="fedbn").click()
    after = page.evaluate(shown)
    assert sum(after) < sum(before)
    page.locator(".chips button", has_text="fedbn").click()
    assert page.evaluate(shown) == before


def test_every_picture_loads_and_the_slider_moves_through_slices(grid: Path, opened: Open) -> None:  # noqa: F811
    page = opened(grid.as_uri())
    sizes = page.evaluate(
        "() => [...document.images].filter((i) => !i.hidden).map((i) => i.complete && i.naturalWidth)"
    )
    diagram, *cases = sizes
    assert diagram > 100, "the ranks of the methods"
    assert len(cases) == 2 * 3 * (2 + 3 * 3)
    assert set(cases) == {12}
    case = page.locator(".case").first
    image = case.locator("img[data-kind=image]").first
    assert case.locator("output").inner_text() == "11", "the slice that is shown first"
    before = image.get_attribute("src")
    case.locator(".slider input").press("ArrowRight")
    assert case.locator("output").inner_text() == "12"
    assert image.get_attribute("src") != before
    other = page.locator(".case").nth(1)
    assert other.locator("output").inner_text() == "11", "each case has a slider of its own"
    truth = case.locator("img.mask.truth").first
    assert not truth.is_visible()
    page.locator("[data-layer=truth]").check()
    assert truth.is_visible()
    page.locator("[data-layer=opacity]").fill("20")
    assert float(truth.evaluate("e => getComputedStyle(e).opacity")) == pytest.approx(0.2)
    page.locator("[data-layer=prediction]").uncheck()
    assert not case.locator("img.mask.prediction").first.is_visible()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_it_can_be_read_in_both_themes_and_fits_a_phone(grid: Path, opened: Open, width: int, dark: bool) -> None:  # noqa: F811
    page = opened(grid.as_uri(), width=width, dark=dark)
    tick = "() => getComputedStyle(document.querySelector('.xtick text')).fill"
    before = page.evaluate(tick)
    assert low_contrast(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    theme = page.locator("#theme")
    assert theme.inner_text() == "Theme: auto"
    for _ in range(1 if dark else 2):
        theme.click()
    assert theme.inner_text() == f"Theme: {'light' if dark else 'dark'}"
    assert page.evaluate(tick) != before, "charts follow the theme"
    assert low_contrast(page) == []
    for _ in range(2 if dark else 1):
        theme.click()
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")


def test_hostile_names_are_text_and_nothing_else(grid: Path, opened: Open) -> None:  # noqa: F811
    page = opened(grid.as_uri())
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("a[href*='example.org']").count() == 0
    assert page.locator("img[src='x']").count() == 0
    assert HOSTILE in page.locator("#scores thead").first.inner_text()
    ticks = page.locator("#cases .ytick text").all_text_contents()
    assert any("<img src=x" in text for text in ticks), "a chart shows the name as it is"


def test_a_study_shows_one_comparison_at_a_time(tmp_path: Path, opened: Open) -> None:  # noqa: F811
    report = write_report(read_results(write_study(tmp_path / "study")), tmp_path / "study.html").report
    page = opened(report.as_uri())
    assert (page.locator("#scores-0").is_visible(), page.locator("#scores-1").is_visible()) == (True, False)
    page.locator("[data-show='1']").click()
    assert (page.locator("#scores-0").is_visible(), page.locator("#scores-1").is_visible()) == (False, True)
    assert page.locator("#convergence-1 .plot:not(:has(svg.main-svg))").count() == 0


def test_a_watched_run_changes_by_itself_and_keeps_its_place(tmp_path: Path, opened: Open) -> None:  # noqa: F811
    run = write_run(tmp_path / "run", finished=False)
    server = PageServer(watched_folder(run, None))
    thread = Thread(target=server.serve_until_over, kwargs={"every": 0.2}, daemon=True)
    thread.start()
    page = opened(server.address)
    page.locator("#theme").click()
    page.evaluate("() => window.scrollTo(0, 500)")
    rounds = "() => document.querySelector('#convergence .plot').data[0].x.length"
    assert page.evaluate(rounds) == 1
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(round_event(0, 0, 1)) + "\n")
    wait_for(page, rounds, 2)
    assert page.evaluate("() => [window.scrollY, document.documentElement.dataset.theme]") == [500, "light"]
    write_run(run, finished=True)
    write_json(run / "live.json", {"sites": {}, "finished": True, "average": {"dice": 0.5}, "round": 3, "rounds": 3})
    page.wait_for_selector("#live:has-text('Finished')", timeout=60_000)
    page.wait_for_selector("#scores table", timeout=60_000)
    thread.join(timeout=60)
    assert not thread.is_alive(), "the server ends with the run"
