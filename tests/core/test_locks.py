"""One process at a time works in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.locks import exclusive_lock, shared_lock, try_exclusive_lock


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until it is killed."""
    code = (
        "import time\n"
        "from pathlib import Path\n"
        "from polyclinic.core.locks import exclusive_lock\n"
        f"with exclusive_lock(Path({str(folder)!r})):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_second_process_is_kept_out_until_the_first_is_dead(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(PolyclinicError, match="another process is working here"), exclusive_lock(tmp_path):
            pytest.fail("two processes in one folder")
        with pytest.raises(PolyclinicError, match="busy"), exclusive_lock(tmp_path, taken="busy"):
            pytest.fail("two processes in one folder")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    with exclusive_lock(tmp_path):  # a kill releases it
        pass


def test_patience_waits_for_a_process_that_is_about_to_end(tmp_path: Path) -> None:
    process = holder(tmp_path)
    end = threading.Timer(0.3, process.kill)
    end.start()
    try:
        start = time.monotonic()
        with exclusive_lock(tmp_path, patience=30):
            assert time.monotonic() - start < 30
    finally:
        end.join()
        process.wait(timeout=30)


def test_impatience_ends_in_time(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path):
        start = time.monotonic()
        with pytest.raises(PolyclinicError), exclusive_lock(tmp_path, patience=0.3):
            pytest.fail("locked twice")
        assert time.monotonic() - start >= 0.3


def test_the_folder_is_made_and_the_lock_ends_with_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive_lock(tmp_path / "new" / "run"):
            assert (tmp_path / "new" / "run" / ".lock").exists()


def test_a_folder_that_cannot_be_made_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyclinicError, match="cannot be written"), exclusive_lock(tmp_path / "file" / "run"):
        pytest.fail("locked a file")


def test_a_file_is_shared_by_readers_and_had_by_one(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with (tmp_path / "x").open() as first, (tmp_path / "x").open() as second, (tmp_path / "x").open() as third:
        shared_lock(first.fileno())
        shared_lock(second.fileno())
        assert not try_exclusive_lock(third.fileno())
        first.close()
        copy = os.dup(second.fileno())
        second.close()
        assert not try_exclusive_lock(third.fileno()), "a copy keeps the lock"
        os.close(copy)
        assert try_exclusive_lock(third.fileno())
