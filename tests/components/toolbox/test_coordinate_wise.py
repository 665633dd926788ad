"""Updates side by side in pieces of bounded size."""

from __future__ import annotations

import pytest

from polyclinic.components.toolbox import coordinate_wise
from site_models import (
    aggregated,
    make,
    models,
    updates_of,
)
from support import assert_same


def test_large_weights_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = models(5, [(7, 3), (2,)])
    whole = [aggregated(make(name), sites)[:2] for name in ("median", "krum")]
    monkeypatch.setattr(coordinate_wise, "_MAX_NUMBERS_AT_ONCE", 20)
    pieces = list(coordinate_wise.side_by_side(updates_of(sites), "weight0"))
    assert [tuple(piece.shape) for piece in pieces] == [(5, 4)] * 5 + [(5, 1)]
    for (weights, notes), name in zip(whole, ("median", "krum"), strict=True):
        again, noted, _ = aggregated(make(name), sites)
        assert_same(weights, again)
        assert noted.get("krum", {}).get("score", {}) == pytest.approx(notes.get("krum", {}).get("score", {}))
