"""Answers come in the order of the items, and an iterator of items is not drained at once."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, get_ident

import pytest

from polyclinic.core.side_by_side import side_by_side


@pytest.mark.parametrize("threads", [1, 3])
def test_answers_are_in_the_order_of_the_items_whoever_finishes_first(threads: int) -> None:
    second_done = Event()

    def work(item: int) -> int:
        if item == 0 and threads > 1:
            assert second_done.wait(60)
        if item == 1:
            second_done.set()
        return item * item

    assert list(side_by_side(work, range(20), threads)) == [n * n for n in range(20)]


def test_one_thread_is_this_one_and_more_are_others() -> None:
    assert set(side_by_side(lambda _: get_ident(), range(3), 1)) == {get_ident()}
    assert get_ident() not in set(side_by_side(lambda _: get_ident(), range(3), 2))


def test_few_items_wait_at_a_time_and_an_error_comes_out() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    answers = side_by_side(lambda number: 1 // (number - 7), items(), 2)
    assert next(answers) == -1
    assert len(drawn) <= 5
    with pytest.raises(ZeroDivisionError):
        list(answers)
