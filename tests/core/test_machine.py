from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from polyclinic.core.machine import (
    available_cores,
    device_problem,
    keep_freed_memory,
    prepare_process,
    visible_gpus,
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="page faults are counted on Linux only")
def test_a_block_that_was_freed_is_taken_again_without_page_faults() -> None:
    import resource

    if not keep_freed_memory():
        pytest.skip("this C library has no mallopt")

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.zeros(8 * 2**20).add_(1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert faults() < 8 * 2**20 * 4 / 4096  # one block's pages, where ten blocks were taken


def test_threads_are_what_was_asked_for() -> None:
    before = torch.get_num_threads()
    prepare_process(2)
    assert torch.get_num_threads() == 2
    prepare_process(before)


@pytest.fixture(autouse=True)
def _no_limit_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYCLINIC_CORES", raising=False)


@pytest.mark.parametrize(("limit", "cores"), [("3", 3), ("99", 8), ("0", 1), ("", 8), ("many", 8)])
def test_the_user_can_set_a_limit(limit: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("POLYCLINIC_CORES", limit)
    assert available_cores(tmp_path) == cores


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A folder that looks like ``/proc`` and ``/sys`` to a process of these control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        (root / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/slice/box\n", {"slice/cpu.max": "300000 100000", "slice/box/cpu.max": "max 100000"}, 3),
        ("0::/slice/box\n", {"slice/cpu.max": "900000 100000", "slice/box/cpu.max": "400000 100000"}, 4),
        ("4:memory:/a\n2:cpu,cpuacct:/box\n", {
            "cpu,cpuacct/box/cpu.cfs_quota_us": "500000\n", "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        }, 5),
        ("2:cpu:/not/mounted/here\n", {"cpu/cpu.cfs_quota_us": "600000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 6),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("nonsense\n", {"cpu.max": "100000 100000"}, 8),
    ],
)  # fmt: skip
def test_cores_are_those_that_the_process_may_use(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert available_cores(machine(tmp_path, groups, files)) == cores


def test_cores_without_control_groups_are_those_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert available_cores(tmp_path) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores(tmp_path) == 1


@pytest.mark.parametrize(
    ("count", "named", "expected"),
    [
        (0, None, ()),
        (0, "0,1", ()),
        (2, None, ("0", "1")),
        (2, "3, 1", ("3", "1")),
        (1, "2,-1,4", ("2",)),
        (1, "GPU-5f3a", ("GPU-5f3a",)),
    ],
)
def test_gpus_keep_the_names_that_they_were_given(
    monkeypatch: pytest.MonkeyPatch, count: int, named: str | None, expected: tuple[str, ...]
) -> None:
    """``device_count`` has heeded the variable already."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == expected


def test_a_device_that_cannot_compute_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [device_problem(name) for name in ("cpu", "cuda", "cuda:0")] == ["", "", ""]
    assert device_problem("cuda:1") == "this machine has 1 usable CUDA device"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_problem("cuda") == "this machine has 0 usable CUDA devices"
    assert "kuda" in device_problem("kuda")
    assert device_problem("meta")
