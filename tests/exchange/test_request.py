from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Broadcast, Failure, to_tensors
from polyclinic.exchange.request import Request

PLAIN = {"act": "evaluate", "run": "a1", "part": "all", "recipe": "seed = 1", "split": "val", "detailed": False}


def received(**changes: Any) -> Request:
    broadcast = to_tensors(Broadcast(0, {}))[1]
    return Request.from_tensors({}, {**PLAIN, "broadcast": broadcast, **changes})


def test_a_request_comes_back() -> None:
    broadcast = Broadcast(4, {"w": torch.ones(2)}, {"cdpa": {"p": torch.zeros(3)}}, best_round=2)
    sent = Request("evaluate", "0f", "without-site.A_1", "seed = 1", "test", True, broadcast)
    tensors, about = sent.to_tensors()
    back = Request.from_tensors(tensors, json.loads(json.dumps(about)))
    assert back.broadcast.weights["w"] is broadcast.weights["w"]  # nothing is copied on the way
    assert back.broadcast.shared["cdpa"]["p"] is broadcast.shared["cdpa"]["p"]
    assert (back.broadcast.round, back.broadcast.best_round) == (4, 2)
    assert (back.act, back.run, back.part, back.recipe, back.split, back.detailed) == (
        "evaluate", "0f", "without-site.A_1", "seed = 1", "test", True,
    )  # fmt: skip


BAD_NAMES = [
    "..", ".", "", "/etc", "a/b", "a/../b", "a..b", "../../x", "~", "-rf", "a b", "a\n", "a\x00", "ä", "C:\\x",
    "a" * 101, "a" * 100_000, 5, None, True, ["a"], {"a": 1}, b"a",
]  # fmt: skip


@pytest.mark.parametrize("key", ["run", "part"])
@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_names_become_folders_so_paths_are_refused(key: str, name: object) -> None:
    with pytest.raises(PolyclinicError, match="which is no name"):
        received(**{key: name})


@pytest.mark.parametrize("name", ["a", "a" * 100, "fold-3", "without-site.A_1", "0123456789abcdef"])
def test_names_of_runs_and_parts_are_taken(name: str) -> None:
    assert received(run=name, part=name).part == name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"act": "delete"}, "a request was received to 'delete', expected describe, train, evaluate"),
        ({"act": ["train"]}, "a request was received to"),
        ({"act": None}, "a request was received to"),
        ({"evil": 1}, "that is none"),
        ({"recipe": 5}, "whose recipe is no text"),
        ({"recipe": None}, "whose recipe is no text"),
        ({"detailed": "yes"}, "whose detailed is not yes or no"),
        ({"split": "train"}, "to evaluate the split 'train'"),
        ({"split": ""}, "to evaluate the split ''"),
        ({"split": ["test"]}, "to evaluate the split"),
        ({"act": "train"}, "to train the split 'val'"),
        ({"broadcast": None}, "not a table"),
        ({"broadcast": []}, "not a table"),
        ({"broadcast": "x"}, "not a table"),
        ({"broadcast": {}}, "of kind 'none'"),
        ({"broadcast": to_tensors(Failure("a", 0, "b"))[1]}, "a request was received to"),
    ],
)
def test_what_is_no_request_gets_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolyclinicError) as caught:
        received(**changes)
    assert words in str(caught.value).lower()


def test_a_request_without_a_broadcast_or_a_name_gets_a_sentence() -> None:
    for about in ({}, PLAIN, {"act": "train", "broadcast": to_tensors(Broadcast(0, {}))[1]}):
        with pytest.raises(PolyclinicError):
            Request.from_tensors({}, about)


def test_tensors_belong_to_the_broadcast() -> None:
    about = {**PLAIN, "broadcast": to_tensors(Broadcast(0, {}))[1]}
    with pytest.raises(PolyclinicError, match="of no known group"):
        Request.from_tensors({"images": torch.zeros(1)}, about)
