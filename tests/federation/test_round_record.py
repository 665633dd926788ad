"""The record of a round: what updates add, what a dropped one takes back, and why sites were refused."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan

import torch

from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Update
from polyclinic.federation.round_record import RoundRecord

DECLARED = {"style": (Shared("mean", (2,), "mean of a style"),)}


def update_of(site: str, samples: int) -> Update:
    shared = {"style": {"mean": torch.full((2,), float(samples))}}
    return Update(site, 0, {"w": torch.zeros(3)}, samples, steps=2 * samples, shared=shared, losses={"a": 1.0})


def test_an_update_is_in_every_column_and_a_dropped_one_in_none() -> None:
    record = RoundRecord()
    for site, samples in (("north", 3), ("south", 5)):
        record.add(update_of(site, samples), DECLARED)
    assert (record.samples, record.steps) == ({"north": 3, "south": 5}, {"north": 6, "south": 10})
    assert record.shared["style"]["south"]["mean"].tolist() == [5, 5]
    assert record.shared_up == {"style": {"north": {"bytes": 8}, "south": {"bytes": 8}}}
    assert record.bytes_up["north"] == update_of("north", 3).bytes
    record.drop("north")
    only = RoundRecord()
    only.add(update_of("south", 5), DECLARED)
    assert record.shared.pop("style").keys() == only.shared.pop("style").keys() == {"south"}
    assert record == only


def test_losses_that_no_mean_can_take_are_null_in_the_record_alone() -> None:
    record = RoundRecord()
    losses = {"a": nan, "b": inf, "c": -inf, "d": 1e308, "e": 0.5}
    record.add(replace(update_of("north", 3), losses=losses), DECLARED)
    plain = {"north": {"a": None, "b": None, "c": None, "d": None, "e": 0.5}}
    assert json.loads(json.dumps(record.plain_losses(), allow_nan=False)) == plain
    assert record.losses["north"] is losses, "whether a training diverged is seen from them as they came"


def test_sites_with_one_reason_are_named_together() -> None:
    record = RoundRecord(refused={"north": "is late", "south": "sent nonsense", "west": "is late"})
    assert record.reasons() == "north, west: is late; south: sent nonsense"
