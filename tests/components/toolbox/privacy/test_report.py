"""Releases of a run are counted from its record."""

from __future__ import annotations

from polyclinic.components.toolbox.privacy.report import releases_of


def event(part: str, sites: str, **reported: float) -> dict[str, object]:
    return {"part": part, "sites": list(sites), "notes": {"privacy": {"releases": reported}} if reported else {}}


def test_updates_that_were_late_or_refused_count_and_parts_add_up() -> None:
    assert releases_of([event("all", "ab", a=1, b=1), event("all", "ab", a=2), event("all", "b", b=3)]) == {
        "a": 2, "b": 3,
    }  # fmt: skip
    assert releases_of([event("all", "ab", a=1, b=1), event("all", "ab", a=2)]) == {"a": 2, "b": 2}
    assert releases_of([event("all", "a", a=4)]) == {"a": 4}, "it was asked before, and the record was taken back"
    assert releases_of([event("1", "ab", a=1, b=1), event("2", "a", a=1)]) == {"a": 2, "b": 1}
