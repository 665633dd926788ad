"""A file is whole or as it was before, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import (
    append_text,
    atomic_write,
    cache_folder,
    make_folder,
    private_folder,
    read_bytes,
    read_json,
    require_space,
    sync_folder,
    write_json,
    write_private,
    write_text,
)


def test_a_written_text_comes_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_text(path, "ä\n")
    write_text(path, "ü\n")
    assert path.read_text(encoding="utf-8") == "ü\n"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "free some space"), (errno.EACCES, "choose another folder")],
)
def test_a_write_that_fails_leaves_the_old_file_and_no_litter(code: int, advice: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    write_text(path, "old")

    def write_half() -> None:
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"half")
            raise OSError(code, os.strerror(code))

    with pytest.raises(PolyclinicError, match=rf"kept\.txt: cannot be written \({os.strerror(code)}\); {advice}\."):
        write_half()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_a_file_is_on_the_disk_unless_it_is_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    for sync in (True, False):
        with atomic_write(tmp_path / "a", sync=sync) as temporary:
            temporary.write_text(str(sync))
    assert len(synced) == 1
    assert (tmp_path / "a").read_text() == "False"


def test_a_folder_that_cannot_be_made_gets_a_sentence(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(
        PolyclinicError, match=r"file/b: cannot be written \(Not a directory\); choose another folder\."
    ):
        make_folder(tmp_path / "file" / "b")


def test_any_other_error_passes_and_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "old")

    def interrupted() -> None:
        with atomic_write(tmp_path / "a") as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"round": 1})
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from polyclinic.core.files import atomic_write\n"
        f"with atomic_write(Path({str(path)!r})) as temporary:\n"
        "    temporary.write_text('{\"round\": ')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_json(path) == {"round": 1}
    (part,) = (p.name for p in tmp_path.iterdir() if p != path)
    # The rest has a name that a resumed run recognises and removes.
    assert part.startswith(".a.json.")
    assert part.endswith(".part")


def test_a_folder_that_is_a_file_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyclinicError, match=r"a\.txt: cannot be written"):
        write_text(tmp_path / "file" / "a.txt", "x")


def test_appended_text_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_text(path, "first\n")
    append_text(path, "Köln\n")
    assert path.read_text(encoding="utf-8") == "first\nKöln\n"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:  # the system takes the first bytes and refuses the rest, as on a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        with pytest.raises(
            PolyclinicError, match=r"events\.jsonl: cannot be written \(File too large\); free some space"
        ):
            append_text(path, "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_text(encoding="utf-8") == "first\nKöln\n"


def test_a_full_disk_is_told_from_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_space(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(PolyclinicError, match=r"no space is left on its disk; free some space and go on with --resume"):
        require_space(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_file_belongs_to_its_owner_alone(umask: int, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("readable by all")
    path.chmod(0o644)
    before = os.umask(umask)
    try:
        write_private(path, b"key")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"key"


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    # What a killed process with the same number left behind, readable by all, is not written into.
    (tmp_path / f".secret.{os.getpid()}.part").write_text("old")
    write_private(tmp_path / "secret", b"key")
    assert modes == [0o600]
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_a_private_folder_is_for_its_owner_and_one_that_is_there_stays(tmp_path: Path) -> None:
    private_folder(tmp_path / "above" / "private")
    assert stat.S_IMODE((tmp_path / "above" / "private").stat().st_mode) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    before = (tmp_path / "open").stat().st_mode
    private_folder(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode == before
    assert (tmp_path / "above").stat().st_mode == before


def test_json_is_readable_and_comes_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert (tmp_path / "x.json").read_text().startswith('{\n  "a": [\n')


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_damaged_json_gets_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(PolyclinicError, match=r"x\.json: cannot be read as JSON"):
        read_json(tmp_path / "x.json")


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"x\.json: cannot be read as JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(PolyclinicError, match=r"ca\.pem: cannot be read \(No such file or directory\)"):
        read_bytes(tmp_path / "ca.pem")


def test_the_cache_folder_is_the_named_one_or_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCLINIC_CACHE", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/named")
    monkeypatch.setenv("POLYCLINIC_CACHE", "")
    assert cache_folder() == Path("/xdg/polyclinic")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/polyclinic")


def test_a_folder_that_is_gone_cannot_be_synced(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(PolyclinicError, match="gone: cannot be written"):
        sync_folder(tmp_path / "gone")
