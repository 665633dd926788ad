"""Which task a run has when its sites describe it, and who is named when they do not agree."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.version import installed_versions
from polyclinic.data.federation import Task
from polyclinic.exchange.messages import Description, Failure
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import NoQuorumError
from polyclinic.runs.task_agreement import SiteAnswers, agree_on_task, collect_answers, task_from, task_table
from support import Keeper

TASK = {"classes": ["background", "disc"], "channels": 1, "spatial_dims": 2}


def test_a_task_comes_back_from_json() -> None:
    table = {**TASK, "spacing": [1.0, 0.5], "regions": [["all", [1]]], "volumes_as_slices": True}
    task, sliced = task_from(json.loads(json.dumps(table)))
    assert sliced
    assert (task.classes, task.spacing, task.regions) == (("background", "disc"), (1.0, 0.5), (("all", (1,)),))


@pytest.mark.parametrize(
    "table",
    [
        {}, {**TASK, "evil": 1}, {**TASK, "classes": "disc"}, {**TASK, "classes": [1, 2]}, {**TASK, "classes": ["a"]},
        {**TASK, "channels": "1"}, {**TASK, "channels": 0}, {**TASK, "channels": 1.5}, {**TASK, "spatial_dims": 4},
        {**TASK, "channels": 4097}, {**TASK, "channels": 10**9}, {**TASK, "neighbours": 101},
        {**TASK, "neighbours": -1}, {**TASK, "classes": [str(n) for n in range(257)]},
        {**TASK, "classes": ["background", "\x9b31m"]}, {**TASK, "modality": "\u202e"},
        {**TASK, "regions": [["a\nb", [1]]]},
        {**TASK, "spacing": "wide"}, {**TASK, "regions": [["all"]]}, {**TASK, "regions": 5}, {**TASK, "modality": []},
    ],
)  # fmt: skip
def test_a_task_that_is_none_gets_a_sentence(table: dict[str, Any]) -> None:
    with pytest.raises(PolyclinicError, match=r"^The site describes .*\.$"):
        task_from(table)


def test_a_task_without_regions_is_written_as_before_there_were_any() -> None:
    task = Task(("background", "disc"), 1, 2)
    assert "regions" not in task_table(task, False)
    with_regions = replace(task, regions=(("all", (1,)),))
    for each in (task, with_regions):
        assert task_from(json.loads(json.dumps(task_table(each, True)))) == (each, True)


class Messages(Keeper):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def description(site: str, task: dict[str, Any] = TASK, **more: Any) -> Description:
    values = {"versions": installed_versions(), **more}
    return Description(site, -1, task, {"train": 3, "test": 1}, True, f"mark of {site}", **values)


def test_answers_are_collected_and_those_who_stay_away_are_named() -> None:
    messages = Messages()
    answers = collect_answers(
        [
            description("a"),
            Failure("b", -1, "no power", "trace"),
            description("c", refusal="not this method"),
            description("d", {**TASK, "evil": 1}),
            description("d2", versions={"torch": "\ud800"}),
            description("e", versions={**installed_versions(), "torch": "0.1"}),
        ],
        messages,
    )
    assert list(answers.tasks) == list(answers.knows_spacing) == ["a", "e"]
    assert answers.splits == {"a": "mark of a", "e": "mark of e"}
    assert answers.versions["e"]["torch"] == "0.1"
    assert [(site, reason) for _, site, reason in messages.refusals] == [
        ("b", "will not take part: no power"),
        ("c", "will not take part: not this method"),
        ("d", "The site describes its task in a way that cannot be read (evil)."),
        ("d2", "cannot take part: it describes itself with a text that no table can hold"),
    ]
    assert messages.messages[0].startswith("a: 3 train, 1 test, polyclinic ")
    (warning,) = [text for text in messages.messages if text.startswith("warning")]
    assert warning.startswith("warning: e has other versions: torch 0.1 (here ")


DISC, RING = Task(("background", "disc"), 1, 2), Task(("background", "ring"), 1, 2)


def answers_of(**tasks: Task) -> SiteAnswers:
    """Sites of which ``a`` does not know its spacing."""
    return SiteAnswers({site: (task, False) for site, task in tasks.items()}, {site: site != "a" for site in tasks})


def test_the_largest_task_is_one() -> None:
    task, _ = task_from({**TASK, "channels": 4096, "neighbours": 100, "classes": [str(n) for n in range(256)]})
    assert (task.channels, len(task.classes)) == (4096, 256)


def test_most_sites_decide() -> None:
    keeper = Keeper()
    assert agree_on_task(answers_of(a=DISC, b=RING, c=RING), None, 2, keeper) == ((RING, False), True)
    ((_, site, reason),) = keeper.refusals
    assert (site, reason[:31]) == ("a", "has another task than the other")
    assert agree_on_task(answers_of(a=DISC), None, 1, Observer()) == ((DISC, False), False)


def test_of_equals_nobody_decides_and_all_are_named_with_what_they_say() -> None:
    """The first by name could otherwise settle the task for everybody, with a billion channels for one."""
    large = replace(DISC, channels=1024)
    said = r"no task is that of most \(aaa: channels = 1024; north: channels = 1\); let all sites use one"
    with pytest.raises(PolyclinicError, match=said):
        agree_on_task(answers_of(aaa=large, north=DISC), None, 1, Observer())
    three = r"\(a, c: classes = .*'disc'\); b, d: classes = .*'ring'\)\); let"
    with pytest.raises(PolyclinicError, match=three):
        agree_on_task(answers_of(a=DISC, b=RING, c=DISC, d=RING, e=large), None, 1, Observer())
    sliced = SiteAnswers({"a": (DISC, False), "b": (DISC, True)}, {"a": True, "b": True})
    with pytest.raises(PolyclinicError, match=r"a: volumes_as_slices = False; b: volumes_as_slices = True"):
        agree_on_task(sliced, None, 2, Observer())
    assert agree_on_task(answers_of(aaa=large, north=DISC), (DISC, False), 1, Observer())[0] == (DISC, False)


def test_a_run_that_goes_on_keeps_its_task() -> None:
    assert agree_on_task(answers_of(b=RING, c=DISC), (DISC, False), 1, Observer()) == ((DISC, False), True)
    assert agree_on_task(SiteAnswers(), (DISC, True), 1, Observer()) == ((DISC, True), True)


def test_without_a_quorum_for_one_task_nothing_starts() -> None:
    with pytest.raises(PolyclinicError, match=r"^Site 'c' has another task than the others \(classes = .*'ring'"):
        agree_on_task(answers_of(a=DISC, b=DISC, c=RING), None, 3, Observer())
    sliced = SiteAnswers({"a": (DISC, False), "b": (DISC, True)}, {"a": True, "b": True})
    with pytest.raises(PolyclinicError, match="volumes are cut into slices at one of them only"):
        agree_on_task(sliced, (DISC, False), 2, Observer())
    with pytest.raises(NoQuorumError, match="No site takes part"):
        agree_on_task(SiteAnswers(), None, 1, Observer())
