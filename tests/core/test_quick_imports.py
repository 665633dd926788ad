"""The collector rests during imports, and works again after them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch

from polyclinic.core.quick_imports import quick_imports


class Knot:
    """Holds itself: only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _new_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    gc.unfreeze()  # what the session has frozen would count
    yield
    gc.unfreeze()


def test_the_collector_rests_inside_and_leaves_out_what_is_there_at_the_end() -> None:
    with quick_imports():
        assert not gc.isenabled()
        kept: list[list[int]] = [[] for _ in range(100)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(kept)
    later = weakref.ref(Knot())
    gc.collect()
    assert later() is None


def test_a_failed_import_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_happens_where_pytorch_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    with quick_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
