from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.deploy.site.hidden_names import without_names
from polyclinic.deploy.site.settings import SiteSettings


@pytest.fixture
def settings(tmp_path: Path) -> SiteSettings:
    (tmp_path / "data" / "north" / "images").mkdir(parents=True)
    for name in ("Doe^Jane_0000.nii.gz", "ab.png"):
        (tmp_path / "data" / "north" / "images" / name).touch()
    return SiteSettings(
        "north", str(tmp_path / "data"), str(tmp_path / "home"), str(tmp_path / "policy.toml"),
        encoder=str(tmp_path / "encoder.bin"), key=str(tmp_path / "north.key"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["{0}/home/runs: full", "{0}/north.key: gone", "{0}/encoder.bin?", "Doe^Jane is odd", "Doe^Jane_0000.nii.gz"],
)
def test_what_names_a_file_or_an_image_stays(text: str, settings: SiteSettings, tmp_path: Path) -> None:
    logged: list[str] = []
    said = without_names(text.format(tmp_path), settings, logged.append)
    assert said == "something is wrong with the site's files, so nothing leaves; its log says what"
    assert logged == [text.format(tmp_path)]


def test_the_policy_is_named_as_such_and_other_sentences_leave(settings: SiteSettings) -> None:
    logged: list[str] = []
    assert "the site's policy" in without_names(f"{settings.policy}: not TOML", settings, logged.append)
    for text in ("the training diverged", "John Doe-Janeway", "cab"):  # "ab" is too short to tell anything
        assert without_names(text, settings, logged.append) == text
    assert len(logged) == 1


def test_images_behind_a_link_are_looked_for_too(settings: SiteSettings, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "Roe.png").touch()
    (tmp_path / "data" / "north" / "labels").symlink_to(tmp_path / "elsewhere")
    assert "its log says what" in without_names("Roe has no label", settings, lambda _: None)
