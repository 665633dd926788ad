from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.page.pictures import Case, read_features, read_gallery
from report_support import write_gallery


def changed(folder: Path, change: Any) -> str:
    """The sentence about a gallery that was changed."""
    file = write_gallery(folder, ("fedavg",)) / "gallery" / "gallery.json"
    table = json.loads(file.read_text())
    change(table)
    file.write_text(json.dumps(table))
    with pytest.raises(PolyclinicError) as error:
        read_gallery(folder)
    return str(error.value)


def test_pictures_become_part_of_the_page(tmp_path: Path) -> None:
    pictures = read_gallery(write_gallery(tmp_path, ("fedavg", "fedbn")))
    assert pictures is not None
    assert set(pictures.files) == {"mask.png", "slice0.png", "slice1.png", "slice2.png"}
    head, data = pictures.files["slice1.png"].split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == (tmp_path / "gallery" / "slice1.png").read_bytes()
    features = read_features(tmp_path)
    assert features is not None
    assert features.panels[0].before[1].site == "south"
    assert (read_gallery(tmp_path / "none"), read_features(tmp_path / "none")) == (None, None)


def test_the_slice_that_is_shown_first_is_one_that_is_there(tmp_path: Path) -> None:
    pictures = read_gallery(write_gallery(tmp_path, ("fedavg",)))
    assert pictures is not None
    case: Case = pictures.gallery.sites["north"][0]
    assert [case.model_copy(update={"start": start}).first for start in (1, 2, 99, -1)] == [1, 2, 2, 0]


def test_files_of_others_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n secret")

    def outside(table: Any) -> None:
        table["sites"]["north"][0]["slices"][0]["image"] = "../secret.png"

    assert "no file of this folder" in changed(tmp_path, outside)
    link = tmp_path / "gallery" / "slice0.png"
    write_gallery(tmp_path, ("fedavg",))
    link.unlink()
    link.symlink_to(tmp_path / "secret.png")
    with pytest.raises(PolyclinicError, match="no file of this folder"):
        read_gallery(tmp_path)
    link.unlink()
    link.write_text("<svg onload=alert(1)>")
    with pytest.raises(PolyclinicError, match="not a PNG"):
        read_gallery(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("version", 2), ("colours", ["red;background:url(x)"]), ("sites", []), ("sites", {"a": [{"rank": "odd"}]})],
)
def test_a_gallery_that_is_not_one_gets_a_sentence(tmp_path: Path, key: str, value: object) -> None:
    sentence = changed(tmp_path, lambda table: table.update({key: value}))
    assert str(tmp_path / "gallery" / "gallery.json") in sentence
    assert key in sentence
