"""One thread a worker, and a cache folder of the tests' own."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tiny_runs import finished, tiny_federation, tiny_recipe_file  # noqa: F401 (fixtures)

# Until all tests are there, nothing is garbage; then it is not looked at again.
gc.disable()

# The same examples in every run: a change that breaks one is the only reason for a test to fail.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    torch.set_num_threads(1)
    os.environ["POLYCLINIC_CORES"] = "1"  # a test that wants several processes says so
    os.environ["POLYCLINIC_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Only a loss of power tells whether a file was synced; a wrong descriptor is still an error."""
    with patch.object(os, "fsync", os.fstat):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes first: they mostly wait, while other workers have the short tests to do."""
    items.sort(key=lambda item: "/e2e/" not in item.nodeid)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# Files whose tests share something that takes long to make: one worker does all of them.
_TOGETHER = (
    "tests/e2e/test_kill.py",
    "tests/e2e/test_package.py",
    "tests/e2e/test_report_browser.py",
    "tests/deploy/site/test_worker.py",
    "tests/runs/test_grid.py",
)
_NO_METHODS = frozenset({"2", "3", "average", "keep", "largest"})


def group_of(nodeid: str) -> str:
    """Tests with one answer run on one worker; the common checks of a method share its reference run.

    >>> group_of("tests/test_common_checks.py::test_buffers[average-fedbn]")
    'tests/test_common_checks.py::fedbn'
    """
    file, _, rest = nodeid.partition("::")
    values = re.search(r"\[(.*)\]", rest)
    if file == "tests/test_common_checks.py" and values:
        return f"{file}::{'-'.join(value for value in values[1].split('-') if value not in _NO_METHODS)}"
    if file.startswith("tests/export/"):
        return "tests/export"  # share one export to ONNX, which takes seconds
    return file if file in _TOGETHER else nodeid


class GroupScheduling(LoadScopeScheduling):
    """The marks of xdist's own loadgroup have no effect under this version of pytest."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget units that are done: all units of a worker are counted after every test."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    """Used by every ``pytest -n``; units keep the order of the collection."""
    gc.enable()  # the process that hands out the tests collects none
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)
