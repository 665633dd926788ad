from __future__ import annotations

import json
from math import inf, isnan, nan
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import (
    Broadcast,
    Description,
    Evaluation,
    Failure,
    Message,
    Tensors,
    Update,
    from_tensors,
    to_tensors,
)

WHOLE = st.integers(-1, 10**6)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(max_size=8)
NAMES = st.text("abcdefgh_.0123456789", min_size=1, max_size=6)


def tensors_of(names: list[str]) -> Tensors:
    return {name: torch.full((2,), float(number)) for number, name in enumerate(names)}


TENSORS = st.lists(NAMES, max_size=3, unique=True).map(tensors_of)
SHARED = st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=2, unique=True).map(tensors_of), max_size=2)
ROW = st.dictionaries(WORDS, WORDS | NUMBER, max_size=3)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Broadcast, WHOLE, TENSORS, SHARED, st.none() | WHOLE),
    st.builds(Update, WORDS, WHOLE, TENSORS, WHOLE, WHOLE, SHARED, st.dictionaries(WORDS, NUMBER, max_size=2), NUMBER),
    st.builds(
        Evaluation, WORDS, WHOLE, WHOLE, NUMBER, st.lists(ROW, max_size=2),
        st.dictionaries(WORDS, st.dictionaries(WORDS, NUMBER, max_size=2), max_size=2), WORDS,
    ),
    st.builds(
        Description, WORDS, WHOLE, st.dictionaries(WORDS, WORDS | WHOLE | st.lists(WORDS, max_size=2), max_size=2),
        st.dictionaries(WORDS, WHOLE, max_size=2), st.booleans(), WORDS, st.dictionaries(WORDS, WORDS, max_size=2),
        st.lists(WORDS, max_size=2), WORDS,
    ),
    st.builds(Failure, WORDS, WHOLE, WORDS, WORDS),
)  # fmt: skip


def plain_of(message: Message) -> dict[str, Any]:
    return {key: value for key, value in vars(message).items() if key not in ("weights", "shared")}


@given(MESSAGES)
def test_every_message_comes_back_from_tensors_and_json(message: Message) -> None:
    tensors, about = to_tensors(message)
    back = from_tensors(tensors, json.loads(json.dumps(about)))
    assert type(back) is type(message)
    assert plain_of(back) == plain_of(message)
    for name, tensor in getattr(message, "weights", {}).items():
        assert back.weights[name] is tensor  # type: ignore[union-attr]
    if isinstance(message, Broadcast | Update):
        assert isinstance(back, Broadcast | Update)
        assert back.weights.keys() == message.weights.keys()
        assert {c: list(t) for c, t in back.shared.items()} == {c: list(t) for c, t in message.shared.items()}


def test_a_score_of_nothing_is_nan_and_travels() -> None:
    back = from_tensors(*to_tensors(Evaluation("north", 1, 0, nan, stats={"dice": {"mean": nan, "count": 0}})))
    assert isinstance(back, Evaluation)
    assert isnan(back.dice)
    assert isnan(back.stats["dice"]["mean"])


UPDATE = {"kind": "Update", "site": "a", "round": 0, "samples": 1, "steps": 1}
SCORES = {"kind": "Evaluation", "site": "a", "round": 0, "images": 1, "dice": 0.5}


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({}, "of kind 'None'"),
        ({"kind": "Pickle"}, "of kind 'Pickle' was received, expected one of Broadcast"),
        ({"kind": ["Update"]}, "expected one of"),
        ({"kind": "Update", "site": "a", "round": 0, "samples": 1}, "'steps' is wrong: Field required"),
        ({**UPDATE, "evil": 1}, "'evil' is wrong"),
        ({**UPDATE, "weights": {"w": [1]}}, "'weights' is wrong"),
        ({**UPDATE, "round": "0"}, "'round' is wrong"),
        ({**UPDATE, "round": 0.5}, "'round' is wrong"),
        ({**UPDATE, "round": True}, "'round' is wrong"),
        ({**UPDATE, "samples": nan}, "'samples' is wrong"),
        ({**UPDATE, "samples": inf}, "'samples' is wrong"),
        ({**UPDATE, "steps": None}, "'steps' is wrong"),
        ({**UPDATE, "site": 5}, "'site' is wrong"),
        ({**UPDATE, "losses": {"ce": "low"}}, "'losses.ce' is wrong"),
        ({**UPDATE, "losses": None}, "'losses' is wrong"),
        ({**SCORES, "rows": [{"case": ["a"]}]}, "'rows.0.case"),
        ({**SCORES, "rows": "none"}, "'rows' is wrong"),
        ({**SCORES, "stats": {"dice": {"mean": "high"}}}, "'stats.dice.mean' is wrong"),
        ({**SCORES, "dice": None}, "'dice' is wrong"),
        ({"kind": "Failure", "site": "a", "round": 0, "reason": {}}, "'reason' is wrong"),
        ({"kind": "Description", "site": "a", "round": -1, "task": []}, "'task' is wrong"),
        ({"kind": "Broadcast", "round": 0, "best_round": "1"}, "'best_round' is wrong"),
        ({**UPDATE, 5: 6}, "is wrong"),
        (None, "are a NoneType, not a table"),
        (["kind", "Update"], "are a list, not a table"),
        ("Update", "are a str, not a table"),
    ],
)
def test_what_is_no_message_gets_a_sentence(about: Any, words: str) -> None:
    with pytest.raises(PolyclinicError, match=r"^A message.*\.$") as caught:
        from_tensors({}, about)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "about",
    [SCORES, {"kind": "Failure", "site": "a", "round": 0, "reason": "no"},
     {"kind": "Description", "site": "a", "round": -1, "task": {}}],
)  # fmt: skip
def test_plain_messages_hold_no_tensors(about: dict[str, Any]) -> None:
    with pytest.raises(PolyclinicError, match="received with 1 tensors, expected none"):
        from_tensors({"shared/cdpa/images": torch.zeros(2)}, about)


@pytest.mark.parametrize("name", ["evil/w", "w", "", "Weights/w", "/w"])
def test_a_tensor_of_no_group_is_not_taken_for_a_shared_one(name: str) -> None:
    with pytest.raises(PolyclinicError, match="of no known group"):
        from_tensors({"weights/w": torch.zeros(1), name: torch.zeros(1)}, UPDATE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["site", "round", "samples", "steps", "losses", "rows", "stats", "dice", "task", "reason", "x"])
KINDS = st.sampled_from(["Broadcast", "Update", "Evaluation", "Description", "Failure"])


@given(JSON | st.builds(lambda kind, rest: {**rest, "kind": kind}, KINDS, st.dictionaries(KEYS, JSON, max_size=5)))
def test_anything_is_a_message_or_gets_a_sentence(about: Any) -> None:
    try:
        message = from_tensors({}, about)
    except PolyclinicError:
        return
    assert to_tensors(message)[1]["kind"] == about["kind"]
