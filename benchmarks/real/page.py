"""A page of tables on real federations: one or several grids of runs, what was measured, and what it teaches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from grids import HERE, Grid
from records import keep, restore

from polyclinic.core.files import write_text
from polyclinic.report.tables import markdown_table


@dataclass(frozen=True)
class Page:
    """Grids in the order in which they run. ``NAME_notes.md`` says what the tables show, and ends the page."""

    name: str
    title: str
    about: tuple[str, ...]
    grids: tuple[Grid, ...]
    overall: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """One table of the whole page: for a row's title, and the title of a column, the grid and the method."""
    overall_title: str = "Before and after"

    def make(
        self,
        data: Path,
        folder: Path,
        jobs: int | None,
        trained: Collection[str] = (),
        most_seeds: int | None = None,
    ) -> Path:
        """Restore recorded runs, train what these grids lack, record it after each of them, and write the page.

        What is finished of a grid that fails or is interrupted is recorded, too.
        """
        own, archive = folder / self.name, HERE / "records" / f"{self.name}.tar.xz"
        restore(archive, own, data)
        for grid in (grid for grid in self.grids if grid.name in trained):
            try:
                grid.run(data, own, jobs, most_seeds)
            finally:
                keep(own, archive)
        page = HERE / f"{self.name}.md"
        write_text(page, self.text(data, own))
        return page

    def text(self, data: Path, folder: Path) -> str:
        """The page, from the runs below a folder."""
        lines = [f"# {self.title}", "", f"Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/real {self.name}`."]
        lines += [*self.about, ""]
        notes = HERE / f"{self.name}_notes.md"
        if notes.exists():
            lines += [notes.read_text(encoding="utf-8").strip(), ""]
        lines += self._overall(data, folder)
        missing = []
        for grid in self.grids:
            finished = grid.finished_rows(data, folder / grid.name)
            if finished is not None:
                lines += finished.section(data, folder)
            if finished is None or (finished.methods, finished.seeds) != (grid.methods, grid.seeds):
                rows = [f"`{method}`" for method in grid.methods if finished and method not in finished.methods]
                rows += [f"seed {seed}" for seed in grid.seeds if finished and seed not in finished.seeds]
                missing.append(f"- {grid.title}{': ' if rows else ''}{', '.join(rows)}")
        if missing:
            lines += ["## Not run yet", "", *missing, ""]
        lines += [f"The runs behind it, without weights: [records/{self.name}.tar.xz](records/{self.name}.tar.xz).", ""]
        return "\n".join(lines)

    def _overall(self, data: Path, folder: Path) -> list[str]:
        """Test Dice of the rows of ``overall``, mean and deviation over seeds; empty until three seeds ran."""
        if not self.overall:
            return []
        columns = list(dict.fromkeys(column for row in self.overall.values() for column in row))
        grids = {grid.name: grid for grid in self.grids}
        rows = [["", *columns]]
        for title, cells in self.overall.items():
            found = [
                _spread(grids[cells[c][0]].scores(data, folder, cells[c][1])) if c in cells else "" for c in columns
            ]
            rows.append([title, *found])
        if not any(cell for _, *found in rows[1:] for cell in found):
            return []
        return [f"## {self.overall_title}", "", markdown_table(rows), "", "Test Dice in %, mean over sites.", ""]


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else ""
