"""The memory of this machine."""

from __future__ import annotations

from polyclinic.core.memory import physical_memory


def test_the_machine_has_memory_for_these_tests() -> None:
    assert 2**28 < physical_memory() < 2**60
