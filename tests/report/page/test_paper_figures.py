from __future__ import annotations

from pathlib import Path

from polyclinic.report.page.paper_figures import plain, write_figures
from polyclinic.report.page.results import read_results
from report_support import write_grid

NAMES = ["accuracy-cost.pdf", "accuracy-cost.svg", "cases.pdf", "cases.svg", "convergence.pdf", "convergence.svg"]


def test_figures_are_pdf_and_svg_and_the_same_each_time(tmp_path: Path) -> None:
    results = read_results(write_grid(tmp_path, ("fedavg", "a$b_$"), seeds=(0, 1)))
    first, second = (write_figures(results, "dice", tmp_path / name) for name in ("figures", "again"))
    assert sorted(path.name for path in first) == NAMES
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for path in first:
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else b"<?xml")
    assert "a$b_$" in (tmp_path / "figures" / "convergence.svg").read_text(), "a dollar is no mathematics"
    assert "fedavg" in (tmp_path / "figures" / "cases.svg").read_text()


def test_without_numbers_there_are_no_figures(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg",), seeds=(0,), missing=[("fedavg", 0)])
    (folder / "m0-seed0" / "events.jsonl").unlink()
    assert write_figures(read_results(folder), "dice", tmp_path / "figures") == []
    assert plain("no\nmathematics") == "no mathematics"
