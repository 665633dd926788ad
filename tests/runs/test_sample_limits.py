"""The weight of an update is what a site says of itself, and not more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyclinic.exchange.messages import Description, Failure, Update
from polyclinic.runs.sample_limits import SampleLimits

COUNTS = {"train": 6, "val": 2, "test": 2}


def update(site: str, samples: int) -> Update:
    return Update(site, 0, {}, samples, 1)


def nobody(sites: Sequence[str]) -> Iterator[Description]:
    raise AssertionError(f"{sites} need not be asked")


def test_more_samples_than_images_are_refused() -> None:
    limits = SampleLimits({"north": COUNTS}, False, nobody)
    assert limits.problem(update("north", 6)) is None
    assert limits.problem(update("north", 10)) is None, "another fold trains on other images"
    told = "it counts 2147483647 samples, and the site has described 10 images"
    assert limits.problem(update("north", 2**31 - 1)) == told


def test_slices_of_volumes_count_one_by_one() -> None:
    limits = SampleLimits({"north": COUNTS}, True, nobody)
    assert limits.problem(update("north", 10 * 4096)) is None
    assert limits.problem(update("north", 10 * 4096 + 1)) is not None


def test_a_site_that_came_later_is_asked_once() -> None:
    asked: list[str] = []

    def describe(sites: Sequence[str]) -> Iterator[Description | Failure]:
        asked.extend(sites)
        for site in sites:
            yield Description(site, -1, {}, COUNTS) if site == "south" else Failure(site, -1, "is not connected")

    limits = SampleLimits({}, False, describe)
    assert limits.problem(update("south", 6)) is None
    assert limits.problem(update("south", 11)) is not None
    assert asked == ["south"]
    assert str(limits.problem(update("mallory", 1))).endswith("when asked now it is not connected")


def test_a_site_without_a_number_has_no_weight() -> None:
    assert SampleLimits({"north": {}}, False, nobody).problem(update("north", 1)) is not None
