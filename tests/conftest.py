"""One thread a worker, and a cache folder of the tests' own."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

from tiny_runs import finished, tiny_federation, tiny_recipe_file  # noqa: F401 (fixtures)

# The same examples in every run: a change that breaks one is the only reason for a test to fail.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    torch.set_num_threads(1)
    os.environ["POLYCLINIC_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes first: they mostly wait, while other workers have the short tests to do."""
    items.sort(key=lambda item: "/e2e/" not in item.nodeid)
