from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.problems import Problem, problem_of, relative

ROOT = Path("/data/fed")


@pytest.mark.parametrize(
    ("sentence", "file", "rest"),
    [
        ("/data/fed/north/images/a.png: is damaged.", "north/images/a.png", "is damaged."),
        ("/data/fed/manifest.csv: line 2: no image.", "manifest.csv", "line 2: no image."),
        # Sentences about other files name them below the folder too.
        ("/data/fed/a/x.png: has no partner /data/fed/b/x.png.", "a/x.png", "has no partner b/x.png."),
        ("/data/fed: holds no site.", "fed", "holds no site."),
        # No file at the start, or one elsewhere: the sentence stays whole.
        ("case_pattern: '(' is wrong.", "", "case_pattern: '(' is wrong."),
        ("/data/federation/x.png: is damaged.", "", "/data/federation/x.png: is damaged."),
        ("No labels at all.", "", "No labels at all."),
    ],
)
def test_the_file_at_the_start_of_a_sentence_is_split_off(sentence: str, file: str, rest: str) -> None:
    assert problem_of(PolyclinicError(sentence), ROOT, "north") == Problem("error", "north", file, rest)


def test_paths_are_below_the_folder_and_the_folder_has_its_name() -> None:
    assert relative(ROOT / "north" / "images", ROOT) == "north/images"
    assert relative(ROOT, ROOT) == "fed"


def test_plain_data_has_every_field() -> None:
    problem = Problem("warning", "north", "a.png", "look at it.")
    assert problem.as_dict() == {"severity": "warning", "site": "north", "file": "a.png", "sentence": "look at it."}
