from __future__ import annotations

import json

from polyclinic.core.timing import Timeline
from polyclinic.core.trace_events import trace_events


def test_events_are_complete_named_and_in_microseconds() -> None:
    timeline = Timeline()
    with timeline.span("round", number=0), timeline.span("loss", site="north", component="cdpa"):
        pass
    timeline.add({"process": 5, "threads": [[6, "main"]], "totals": [], "dropped": 0,
                  "spans": [["site", timeline.start + 2000, timeline.start + 5000, 0, 5, 6, "south", 1, ""]]},
                 "worker 1")  # fmt: skip
    events = json.loads(json.dumps(trace_events(timeline)))
    names = {(e["name"], e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {
        ("process_name", timeline.process, "polyclinic"), ("process_name", 5, "worker 1"),
        ("thread_name", timeline.process, "main"), ("thread_name", 5, "main"),
    }  # fmt: skip
    complete = {e["name"]: e for e in events if e["ph"] == "X"}
    assert complete.keys() == {"round", "cdpa: loss", "site"}
    assert complete["cdpa: loss"]["args"] == {"site": "north", "round": 1, "component": "cdpa"}
    assert complete["cdpa: loss"]["cat"] == "component"
    assert (complete["site"]["ts"], complete["site"]["dur"], complete["site"]["tid"]) == (2.0, 3.0, 6)
    assert complete["round"]["args"] == {"round": 1}
    starts = [e["ts"] for e in events if e["ph"] == "X"]
    assert starts == sorted(starts)
