"""Hashes of files are those of their content, and a second look reads only what may have changed."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data import content_hashes as module
from polyclinic.data.content_hashes import content_hashes


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content was read."""
    names: list[str] = []
    real = module._content_hash

    def spy(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(module, "_content_hash", spy)
    return names


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute from now, when files that were just written have rested."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 60 * 10**9)


def files(folder: Path, **contents: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text)
    return [folder / name for name in contents]


def test_hashes_are_those_of_the_contents(tmp_path: Path) -> None:
    paths = [*files(tmp_path / "a", x="1", y="2"), *files(tmp_path / "b", x="1")]
    expected = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    assert content_hashes([*paths, paths[0]]) == expected
    assert content_hashes(paths, tmp_path / "memory") == expected
    assert content_hashes(paths, tmp_path / "memory") == expected


@pytest.mark.usefixtures("later")
def test_a_file_that_rested_is_read_once(tmp_path: Path, read: list[str]) -> None:
    paths = files(tmp_path / "a", x="1", y="2")
    for _ in range(2):
        content_hashes(paths, tmp_path / "memory")
    assert sorted(read) == ["x", "y"]
    other = tmp_path / "link"
    other.symlink_to(tmp_path / "a", target_is_directory=True)
    content_hashes([other / "x"], tmp_path / "memory")
    assert len(read) == 2, "a folder is itself by any name"
    content_hashes(paths)
    assert len(read) == 4, "nothing is remembered without a memory"


def test_a_file_that_changed_just_now_is_read_again(tmp_path: Path, read: list[str]) -> None:
    (path,) = files(tmp_path / "a", x="1")
    before = path.stat()
    first = content_hashes([path], tmp_path / "memory")
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content_hashes([path], tmp_path / "memory") != first
    assert read == ["x", "x"]


@pytest.mark.usefixtures("later")
def test_a_changed_file_is_noticed_with_its_old_size_and_time(tmp_path: Path) -> None:
    (path,) = files(tmp_path / "a", x="1")
    first, before = content_hashes([path], tmp_path / "memory"), path.stat()
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert content_hashes([path], tmp_path / "memory")[path] == hashlib.sha256(b"2").hexdigest() != first[path]


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"x": 1}', '{"x": [[1], 2, 3]}', "\0\0"])
def test_a_damaged_memory_is_forgotten(tmp_path: Path, read: list[str], damage: str) -> None:
    (path,) = files(tmp_path / "a", x="1")
    first = content_hashes([path], tmp_path / "memory")
    (notes,) = (tmp_path / "memory").iterdir()
    notes.write_text(damage)
    assert content_hashes([path], tmp_path / "memory") == first
    assert content_hashes([path], tmp_path / "memory") == first
    assert read == ["x", "x"]


@pytest.mark.usefixtures("later")
def test_the_memory_is_private_and_forgets_files_that_are_gone(tmp_path: Path) -> None:
    x, y = files(tmp_path / "a", x="1", y="2")
    content_hashes([x, y], tmp_path / "memory")
    (notes,) = (tmp_path / "memory").iterdir()
    assert notes.stat().st_mode & 0o777 == 0o600
    assert notes.parent.stat().st_mode & 0o777 == 0o700
    assert '"x"' in notes.read_text()
    x.unlink()
    y.write_text("3")
    content_hashes([y], tmp_path / "memory")
    assert '"x"' not in notes.read_text()


def test_a_memory_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (path,) = files(tmp_path / "a", x="1")
    (tmp_path / "memory").write_text("in the way")
    assert content_hashes([path], tmp_path / "memory" / "hashes") == content_hashes([path])


def test_a_file_that_vanished_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"x\.png: cannot be read \(No such file or directory\); restore"):
        content_hashes([tmp_path / "x.png"])
    (tmp_path / "y.png").mkdir()
    with pytest.raises(PolyclinicError, match=r"y\.png: cannot be read \(Is a directory\)"):
        content_hashes([tmp_path / "y.png"])
