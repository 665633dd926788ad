"""The critical-difference diagram on the page: a picture inside of the file, in which no script can run."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from polyclinic.report.critical_difference import svg_of
from polyclinic.report.statistics import GridStatistics


@dataclass(frozen=True)
class RankDiagram:
    """``address`` is the picture as a ``data:`` address, ``label`` what it shows in words."""

    address: str
    label: str
    note: str


def rank_diagram(statistics: GridStatistics | None) -> RankDiagram | None:
    """The diagram of a grid's mean ranks, from three methods and two sites on; drawn anew, never read from a folder."""
    ranks = statistics.ranks if statistics else None
    if ranks is None or ranks.critical_difference is None:
        return None
    address = f"data:image/svg+xml;base64,{base64.b64encode(svg_of(ranks)).decode('ascii')}"
    note = (
        "Mean ranks over sites, 1 is best. Methods joined by a bar are not told apart by the critical difference (5 %)."
    )
    return RankDiagram(address, f"Critical-difference diagram. {ranks.sentence}", note)
