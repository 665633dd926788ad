from __future__ import annotations

import base64
from pathlib import Path
from xml.etree import ElementTree

from polyclinic.report.page.rank_diagram import rank_diagram
from polyclinic.report.statistics import grid_statistics
from report_support import HOSTILE, write_grid


def test_it_is_drawn_from_three_methods_and_two_sites_on(tmp_path: Path) -> None:
    found = rank_diagram(grid_statistics(write_grid(tmp_path / "three", ("a", "b", HOSTILE)), "dice", "a"))
    assert found is not None
    kind, _, data = found.address.partition(",")
    assert kind == "data:image/svg+xml;base64"
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(base64.b64decode(data)).iter()}
    assert {"svg", "path"} <= tags
    assert not tags & {"script", "text", "a", "img", "image", "foreignObject"}
    assert "1.00, b 2.00, a 3.00" in found.label
    assert rank_diagram(grid_statistics(write_grid(tmp_path / "two", ("a", "b")), "dice", "a")) is None
    alone = write_grid(tmp_path / "site", ("a", "b", "c"), sites=("north",))
    assert rank_diagram(grid_statistics(alone, "dice", "a")) is None
    assert rank_diagram(None) is None
