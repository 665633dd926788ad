from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.report import make_report
from polyclinic.report.make_report import report


@pytest.fixture
def run(finished: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished(), tmp_path / "run"))


def test_pictures_that_cannot_be_made_are_no_reason_to_have_no_report(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_the_sites(*_: object, **__: object) -> None:
        raise PolyclinicError("The images are at the sites.")

    monkeypatch.setattr(make_report, "make_gallery", at_the_sites)
    warnings: list[str] = []
    written = report(run, warn=warnings.append)
    assert warnings == ["no pictures: The images are at the sites."]
    assert not written.headline["pictures"]
    assert "There are no pictures here: The images are at the sites." in written.report.read_text()


def test_what_is_wrong_is_said_before_pictures_are_made(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_report, "make_gallery", lambda *_, **__: pytest.fail("pictures were made"))
    with pytest.raises(PolyclinicError, match="--metric nonsense"):
        report(run, metric="nonsense")
    with pytest.raises(PolyclinicError, match="is a folder"):
        report(run, out=run)
