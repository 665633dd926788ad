"""What the default engine chooses, and that it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.engines.auto import Machine, choose, choose_here, open_auto
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.workers import Workers
from polyclinic.federation.observer import Observer
from support import tiny_recipe, tiny_server

GB = 10**9


def test_cores_sites_memory_and_the_recipe_decide() -> None:
    eight = Machine(8, "core", 16 * GB)
    assert choose(eight, 4, 1, None, GB).workers == 4
    assert choose(eight, 100, 1, None, GB).workers == 8
    assert choose(eight, 100, 2, None, GB).workers == 4
    tight = choose(eight, 100, 1, None, 4 * GB)
    assert tight.workers == 3
    assert tight.reason == "8 cores, 100 sites, 16.0 GB free for about 4.0 GB a process"
    assert choose(eight, 100, 1, 5, 4 * GB).workers == 5
    assert choose(eight, 3, 1, 5, GB).reason == "engine.workers = 5, 3 sites"
    assert choose(Machine(1, "core", GB), 9, 1, None, 2 * GB).workers == 1
    assert choose(Machine(2, "GPU", 64 * GB), 9, 4, None, GB).workers == 2


@given(st.integers(1, 256), st.integers(1, 1000), st.integers(1, 64), st.integers(0, 10**12), st.integers(0, 10**11))
def test_threads_are_never_oversubscribed(cores: int, sites: int, threads: int, memory: int, needed: int) -> None:
    workers = choose(Machine(cores, "core", memory), sites, threads, None, needed).workers
    assert 1 <= workers <= sites
    assert workers == 1 or workers * threads <= cores
    assert workers == 1 or workers * needed <= memory


@pytest.mark.parametrize(("cores", "kind", "about"), [
    ("1", InProcess, "sites one after another in this process, 1 thread (1 core, 3 sites)"),
    ("2", Workers, "2 worker processes, 1 thread each (2 cores, 3 sites)"),
])  # fmt: skip
def test_it_opens_what_it_chose_and_says_why(
    cores: str, kind: type, about: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYCLINIC_CORES", cores)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    server = tiny_server(tmp_path, tiny_recipe())
    engine = open_auto(server.workspace, server.engine.sites, Observer())  # type: ignore[attr-defined]
    assert type(engine) is kind
    assert engine.about == about


def test_no_processes_on_a_device_that_has_no_place_for_several(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(engine={"workers": 4}))
    server.workspace.device = type("Device", (), {"type": "mps"})()  # type: ignore[assignment]
    assert choose_here(server.workspace, server.engine.sites).workers == 1  # type: ignore[attr-defined]
