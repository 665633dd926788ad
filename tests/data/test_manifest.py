"""manifest.csv gives cases and splits; a wrong row is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_support import two_sites
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.open_federation import open_federation


def test_the_manifest_gives_cases_and_splits(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text(
        "\ufeffsite;image;case;split;age\neast;a.png;P1;train;7\neast;b;P2;;8\nnorth;c;;test;9\n", encoding="utf-8"
    )
    east, north = open_federation(tmp_path).sites.values()
    assert [(item.case, item.split) for item in east] == [("P1", "train"), ("P2", None), ("c", None)]
    assert (north[2].case, north[2].split) == ("c", "test")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("site,image\neast,a\neast,z", "row 3 names the image 'z', which site 'east' does not have"),
        ("site,image\neats,a", "row 2 names the site 'eats', which has no folder, did you mean 'east'"),
        ("site,image\neast,a\neast,a.png", "row 3 .* a second time"),
        ("site,image,split\neast,a,training", "row 2 has the split 'training'"),
        ("image,case\na,b", "no column 'site'"),
    ],
)
def test_a_wrong_manifest_names_the_row(tmp_path: Path, rows: str, words: str) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text(rows)
    with pytest.raises(PolyclinicError, match=words):
        open_federation(tmp_path)


def test_manifest_rows_of_sites_left_out_are_skipped(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text("site,image,split\neast,a,val\nnorth,a,test\n")
    (tmp_path / "federation.toml").write_text('sites = ["north"]')
    assert open_federation(tmp_path).sites["north"][0].split == "test"
