"""A child asks to end with its parent."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_PARENT = """
import os, signal, subprocess, sys
from polyclinic.core.child_processes import die_with_parent
ask = lambda: die_with_parent(signal.SIGKILL)
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, preexec_fn=ask)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux signals the death of a parent")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    from polyclinic.deploy.processes import is_alive, start_time

    parent = subprocess.run([sys.executable, "-c", _PARENT], capture_output=True, text=True, timeout=60)
    assert parent.returncode == -signal.SIGKILL
    child = int(parent.stdout)
    # The kernel has sent the signal before the parent's end could be waited for; only its delivery takes a moment.
    for _ in range(200):
        if not is_alive(child, start_time(child)):
            return
        subprocess.run(["sleep", "0.05"], check=True)
    pytest.fail("the child lives on")
