"""The folder of prepared images: whole entries, one maker each, room by last use, nothing left by those who die."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data import cache_entry, prepared_cache
from polyclinic.data.cache_entry import Block, CacheUnusableError, FileTarget, Layout
from polyclinic.data.prepared_cache import PreparedCache, cache_of, default_cache_folder, named_cache, remove_unused
from polyclinic.recipe import DataSettings

SIZE = 100  # floats of an entry


@pytest.fixture
def cache(tmp_path: Path) -> PreparedCache:
    return PreparedCache(tmp_path / "above" / "cache", 10**9)


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are mapped, however small."""
    monkeypatch.setattr(cache_entry, "_SMALL", 0)


def add(
    cache: PreparedCache, *names: str, value: float = 1.0, say: Callable[[str], None] = lambda _: None
) -> list[str]:
    layout = Layout({"a": Block("F32", (SIZE,))})
    with cache.making(names, say) as opened:
        for descriptor in opened.values():
            target = FileTarget(descriptor, layout)
            target.write(0, np.full(SIZE, value, np.float32))
            target.finish([])
        cache.add(list(opened))
    return list(opened)


def listed(cache: PreparedCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir())


def used_at(cache: PreparedCache, **times: int) -> None:
    for name, then in times.items():
        os.utime(cache.folder / f"{name}.safetensors", (then, then))


def test_an_entry_is_found_and_private(cache: PreparedCache) -> None:
    assert cache.find("x") is None
    assert not cache.holds("x")
    assert add(cache, "x", "y") == ["x", "y"]
    found = cache.find("x")
    assert found is not None
    assert found.tensors["a"].tolist() == [1.0] * SIZE
    assert listed(cache) == ["x.safetensors", "y.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in cache.folder.iterdir()} == {0o600}
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert cache.folder.parent.stat().st_mode & 0o077, "folders above are as everywhere"
    assert add(cache, "x", "z", value=2.0) == ["z"], "an entry is made once"


def test_a_damaged_entry_is_removed(cache: PreparedCache) -> None:
    add(cache, "x")
    (cache.folder / "x.safetensors").write_bytes(b"nonsense")
    assert cache.find("x") is None
    assert listed(cache) == []


def test_nothing_half_made_stays(cache: PreparedCache) -> None:
    with suppress(KeyboardInterrupt), cache.making(["x", "y"]) as opened:
        os.write(opened["x"], b"half")
        assert listed(cache) == [".x.safetensors.part", ".y.safetensors.part"]
        raise KeyboardInterrupt
    assert listed(cache) == []


def test_the_least_recently_used_make_room(cache: PreparedCache) -> None:
    add(cache, "a", "b", "c", "d")
    used_at(cache, a=40, b=10, c=30, d=20)
    size = cache.stored()[0].bytes
    assert [file.path.stem for file in cache.stored()] == ["b", "d", "c", "a"]
    cache.limit = 4 * size
    cache.make_room(0)
    assert len(listed(cache)) == 4
    cache.make_room(size + 1)
    assert listed(cache) == ["a.safetensors", "c.safetensors"]
    assert cache.find("c") is not None
    cache.make_room(3 * size)
    assert listed(cache) == ["c.safetensors"], "using an entry counts"
    with pytest.raises(CacheUnusableError, match=r"kB are needed and data\.cache_limit_mb allows 0\.0"):
        cache.make_room(5 * size)
    assert listed(cache) == ["c.safetensors"], "nothing goes in vain"


@pytest.mark.usefixtures("mapped")
def test_an_entry_in_use_is_not_removed(cache: PreparedCache) -> None:
    add(cache, "a", "b")
    entry = cache.find("a")
    cache.limit = 1
    with pytest.raises(CacheUnusableError, match="are needed"):
        cache.make_room(0)
    assert listed(cache) == ["a.safetensors"]
    assert cache.clear() == (0, 1)
    assert entry is not None
    view = entry.tensors["a"][:3]
    del entry
    assert not remove_unused(cache.folder / "a.safetensors"), "a view keeps it, too"
    assert view.tolist() == [1.0] * 3
    del view
    assert cache.clear()[1] == 0
    assert listed(cache) == []


def test_what_is_being_made_counts_and_stays(cache: PreparedCache) -> None:
    add(cache, "a")
    used = cache.stored()[0].bytes
    cache.limit = 10 * used
    with cache.making(["b"]) as opened:
        FileTarget(opened["b"], Layout({"a": Block("U8", (9 * used,))}))
        other = PreparedCache(cache.folder, cache.limit)
        other.make_room(0)
        assert listed(cache) == [".b.safetensors.part"]
        with pytest.raises(CacheUnusableError, match="are needed"):
            other.make_room(used)


def test_a_full_disk_is_known_before_anything_is_made(cache: PreparedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    add(cache, "a")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    cache.make_room(10**6)
    with pytest.raises(CacheUnusableError, match=r"No space left on device: 2\.0 MB are needed"):
        cache.make_room(2 * 10**6)


def test_clearing_removes_what_is_ours_alone(cache: PreparedCache) -> None:
    add(cache, "a")
    cache.hashes.mkdir()
    (cache.hashes / "x.json").write_text("{}")
    (cache.folder / ".b.safetensors.part").write_text("left by a process that was killed")
    (cache.folder / "mine.txt").write_text("the user's")
    size = cache.stored()[0].bytes
    assert cache.clear() == (size, 0)
    assert listed(cache) == ["hashes", "mine.txt"]
    assert list(cache.hashes.iterdir()) == []
    assert PreparedCache(cache.folder / "none", 0).clear() == (0, 0)


def test_old_hashes_are_forgotten(cache: PreparedCache) -> None:
    add(cache, "a")
    cache.hashes.mkdir()
    for name, days in (("old", 91), ("new", 89)):
        (cache.hashes / f"{name}.json").write_text("{}")
        os.utime(cache.hashes / f"{name}.json", (time.time() - 86400 * days,) * 2)
    cache.make_room(0)
    assert [path.stem for path in cache.hashes.iterdir()] == ["new"]


KILLED = """
import sys, time
from pathlib import Path
from polyclinic.data.cache_entry import Block, FileTarget, Layout
from polyclinic.data.prepared_cache import PreparedCache
with PreparedCache(Path(sys.argv[1]), 1e9).making(["x"]) as opened:
    FileTarget(opened["x"], Layout({"a": Block("F32", (1000,))}))
    print("making", flush=True)
    time.sleep(600)
"""


def test_a_killed_maker_is_followed_by_another(cache: PreparedCache) -> None:
    maker = subprocess.Popen([sys.executable, "-c", KILLED, str(cache.folder)], stdout=subprocess.PIPE)
    assert maker.stdout is not None
    assert maker.stdout.readline() == b"making\n"
    assert cache.find("x") is None
    assert cache.clear() == (0, 0)
    assert listed(cache) == [".x.safetensors.part"], "it is alive"
    said: list[str] = []

    def make() -> None:
        with cache.making(["x"], said.append) as opened:
            FileTarget(opened["x"], Layout({"a": Block("F32", (1,))})).finish([])
            cache.add(["x"])

    waiting = Thread(target=make)
    waiting.start()
    while not said:
        time.sleep(0.01)
    maker.kill()
    maker.wait()
    waiting.join()
    assert said == ["waiting for another process that prepares the same images"]
    assert listed(cache) == ["x.safetensors"]


def test_whoever_waits_finds_what_the_other_made(cache: PreparedCache) -> None:
    said: list[str] = []
    made: list[dict[str, int]] = []

    def make() -> None:
        with cache.making(["x"], said.append) as opened:
            made.append(dict(opened))

    with cache.making(["x"]) as opened:
        waiting = Thread(target=make)
        waiting.start()
        while not said:
            time.sleep(0.01)
        FileTarget(opened["x"], Layout({"a": Block("F32", (1,))})).finish([])
        cache.add(["x"])
    waiting.join()
    assert made == [{}]
    assert listed(cache) == ["x.safetensors"]


def test_whoever_waits_does_not_wait_for_those_who_use_what_was_made(cache: PreparedCache, mapped: None) -> None:
    said: list[str] = []
    made: list[list[str]] = []
    waiting = Thread(target=lambda: made.append(add(cache, "x", say=said.append)), daemon=True)
    with cache.making(["x"]) as opened:
        waiting.start()
        while not said:
            time.sleep(0.01)
        FileTarget(opened["x"], Layout({"a": Block("F32", (1000,))})).finish([])
        cache.add(["x"])
    entry = cache.find("x")
    waiting.join(20)
    assert entry is not None, "it is in use, and locked, all the time"
    assert made == [[]]


def test_a_folder_that_cannot_be_used_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = PreparedCache(tmp_path / "file", 1)
    assert cache.find("x") is None
    with pytest.raises(CacheUnusableError, match="File exists"), cache.making(["x"]):
        pass


@pytest.mark.usefixtures("mapped")
def test_more_files_are_allowed_where_they_run_out(cache: PreparedCache) -> None:
    names = [f"x{number}" for number in range(40)]
    add(cache, *names)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    if before[1] <= open_now + 60:
        pytest.skip("this process may not ask for more files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 10, before[1]))
    try:
        entries = [cache.find(name) for name in names]
        assert all(entries)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_other_errors_of_reading_are_told(cache: PreparedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(prepared_cache, "read_entry", broken)
    with pytest.raises(CacheUnusableError, match="Input/output error"):
        cache.find("x")


def test_the_recipe_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCLINIC_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    default, own = cache_of(DataSettings()), cache_of(DataSettings(cache="~/own", cache_limit_mb=3))
    assert default is not None
    assert own is not None
    assert (default.folder, default.limit) == (default_cache_folder(), 20e9) == (tmp_path / "prepared", 20e9)
    assert (own.folder, own.limit) == (tmp_path / "home/own", 3e6)
    assert cache_of(DataSettings(cache="off")) is None


def test_a_folder_that_a_person_named_holds_nothing_but_a_cache(tmp_path: Path) -> None:
    key = "0123456789abcdef" * 2
    (tmp_path / "hashes").mkdir()
    for name in (f"images-{key}.safetensors", f".labels-{key}.safetensors.part", ".DS_Store"):
        (tmp_path / name).write_bytes(b"")
        assert named_cache(tmp_path).folder == tmp_path
    for name in ("best.safetensors", f"images-{key}.png", "images-of-mine.safetensors"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(PolyclinicError, match=f"no folder of prepared images, as it holds {name}"):
            named_cache(tmp_path)
        (tmp_path / name).unlink()
