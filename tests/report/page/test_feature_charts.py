from __future__ import annotations

from polyclinic.report.page.feature_charts import feature_charts
from polyclinic.report.page.pictures import Features


def test_before_and_after_share_their_axes_and_sites_their_colours() -> None:
    points = [
        {"site": site, "class": c, "x": 1.0 * n, "y": -2.0} for n, site in enumerate("ab") for c in ("disc", "core")
    ]
    after = [{**point, "x": 0.5} for point in points]
    panel = {"method": "fedbcs", "title": "means", "explained": [0.75, 0.125], "before": points, "after": after}
    share = {"between_sites": {"before": 0.5, "after": 0.25}}
    ((title, chart),) = feature_charts(Features.model_validate({"version": 1, "panels": [panel | share]}))
    assert title == "fedbcs: means"
    assert chart.layout["xaxis"]["range"] == chart.layout["xaxis2"]["range"] == [-0.08, 1.08]
    assert "75% of the variance" in chart.layout["xaxis"]["title"]["text"]
    assert "50% of the variance lies between sites before, 25% after." in chart.note
    by_name = {(trace["name"], trace["xaxis"]): trace["marker"] for trace in chart.data}
    assert len(by_name) == 8
    assert by_name["a, disc", "x"] == by_name["a, disc", "x2"] != by_name["b, disc", "x"]
    assert by_name["a, disc", "x"]["symbol"] != by_name["a, core", "x"]["symbol"]


def test_an_empty_panel_is_left_out() -> None:
    panel = {"method": "m", "title": "t", "explained": [], "before": [], "after": []}
    assert feature_charts(Features.model_validate({"version": 1, "panels": [panel]})) == []
