"""What the record of a run says about the software."""

from __future__ import annotations

import json
import platform

import torch

import polyclinic
from polyclinic.core import version
from polyclinic.core.version import VERSION, installed_versions


def test_the_record_names_what_numbers_depend_on() -> None:
    versions = installed_versions()
    assert versions["python"] == platform.python_version()
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"machine", "system", "polyclinic", "monai", "numpy", "safetensors", "flwr"} <= versions.keys()
    assert json.loads(json.dumps(versions)) == versions


def test_a_package_that_is_not_there_is_said_so(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(version, "_PACKAGES", ("no-such-package",))
    assert installed_versions()["no-such-package"] == "not installed"


def test_there_is_one_version() -> None:
    assert polyclinic.__version__ == VERSION
