"""What is known of the machine's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.memory import enough_memory, free_memory, physical_memory

STAT = "anon 5\ninactive_file 30\n"


def test_it_has_some() -> None:
    assert 2**28 < physical_memory() < 2**60
    assert 0 < free_memory() <= physical_memory()


@pytest.mark.parametrize(("group", "files", "free"), [
    ("0::/\n", {}, 2048),
    ("0::/\n", {"memory.max": "1000", "memory.current": "400", "memory.stat": STAT}, 630),
    ("0::/\n", {"memory.max": "max", "memory.current": "400", "memory.stat": STAT}, 2048),
    ("0::/a/b\n", {"a/memory.max": "100", "a/memory.current": "400", "a/memory.stat": STAT}, 0),
    ("3:memory:/\n", {"memory.max": "1000", "memory.current": "400", "memory.stat": STAT}, 2048),
])  # fmt: skip
def test_a_control_group_may_leave_less(group: str, files: dict[str, str], free: int, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  2 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(group)
    for name, text in files.items():
        (tmp_path / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup" / name).write_text(text)
    assert free_memory(tmp_path) == free


def test_elsewhere_half_of_it_counts_as_free(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == physical_memory() // 2


@pytest.mark.parametrize("size", [2**50, 2**62, 2**80])
def test_a_tensor_that_no_memory_can_hold_is_the_sentence_of_the_caller(size: int) -> None:
    with pytest.raises(PolyclinicError, match="too much"), enough_memory("too much"):
        torch.empty(size)


def test_a_gpu_without_room_and_python_itself_say_the_same() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GB"), MemoryError()):
        with pytest.raises(PolyclinicError, match="too much"), enough_memory("too much"):
            raise error


def test_other_errors_stay_what_they_are() -> None:
    for error in (RuntimeError("shape mismatch"), TypeError("no number")):
        with pytest.raises(type(error)), enough_memory("too much"):
            raise error
