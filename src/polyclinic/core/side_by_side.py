"""Work on many items in a few threads: answers in order, and few items in memory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def side_by_side(work: Callable[[_Item], _Answer], items: Iterable[_Item], threads: int) -> Iterator[_Answer]:
    """``work`` on each item, the answers in the order of the items; with one thread, one after another in this one.

    At most two items a thread wait, so that an iterator of large ones is not drained at once.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Answer]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
