from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.exchange import exchange_of
from polyclinic.report.page.results import Grid, read_results
from report_support import round_event, write_grid


def declared(_: Path) -> dict[str, Any]:
    shared = {"component": "cdpa", "tensor": "means", "shape": [2, "rows"], "what": "class means", "pictures_of": 4}
    kept = {"tensors": 1, "bytes": 300}
    return {"images_leave": False, "weights": {"tensors": 8, "bytes": 1}, "kept": kept, "shared": [shared]}


def a_grid(folder: Path) -> Grid:
    write_grid(folder, ("fedavg", "fedbcs"), seeds=(0,))
    amounts = {"cdpa": {"north": {"bytes": 1000}, "south": {"bytes": 3000}}}
    event = round_event(1, 0, 0, shared_up=amounts)
    (folder / "m1-seed0" / "events.jsonl").write_text(json.dumps(event) + "\n")
    return read_results(folder).grids[0]


def test_what_left_is_measured_by_component_and_beside_it_what_was_declared(tmp_path: Path) -> None:
    exchange = exchange_of(a_grid(tmp_path), declared)
    assert exchange is not None
    rows = {one.method: one.rows for one in exchange.by_component}
    assert rows["fedbcs"] == [
        ["trained weights", "998.0 kB", "8", "weights of the network"],
        ["cdpa", "2.0 kB", "1", "means (2 x rows): class means"],
    ]
    assert "fedbcs: 1 weight tensor (300 B) stay at each site. cdpa sends means of 4 images" in exchange.remarks[1]
    cell = exchange.by_site.rows[0][1]
    assert (cell.text, cell.note) == ("3.0 MB up", "6.0 MB down")
    assert exchange.sentence.startswith("Images and labels never left a site.")


def test_what_cannot_be_declared_is_said(tmp_path: Path) -> None:
    def unknown(_: Path) -> dict[str, Any]:
        raise PolyclinicError("There is no component 'mine'.")

    exchange = exchange_of(a_grid(tmp_path), unknown)
    assert exchange is not None
    assert "cannot be listed here: There is no component 'mine'." in exchange.remarks[0]


def test_a_reference_that_pools_images_is_named(tmp_path: Path) -> None:
    a_grid(tmp_path)
    summary = tmp_path / "m0-seed0" / "summary.json"
    write_json(summary, read_json(summary) | {"images_leave": True})
    exchange = exchange_of(read_results(tmp_path).grids[0], None)
    assert exchange is not None
    assert "but for fedavg" in exchange.sentence


def test_before_the_first_round_nothing_has_left(tmp_path: Path) -> None:
    for file in write_grid(tmp_path, seeds=(0,)).rglob("events.jsonl"):
        file.unlink()
    assert exchange_of(read_results(tmp_path).grids[0], declared) is None
