"""The keys of federation.toml: used where they are right, a sentence where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_support import two_sites
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation_file import read_federation_file
from polyclinic.data.open_federation import open_federation


def test_the_description_is_used(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "federation.toml").write_text(
        'name = "mine"\nclasses = ["background", "tumour"]\nmodality = "MR"\nchannels = 1\nspacing = [0.5, 0.25]\n'
        'spatial_dims = 2\nsites = ["north"]\n'
    )
    federation = open_federation(tmp_path)
    assert (federation.name, list(federation.sites)) == ("mine", ["north"])
    task = federation.task
    assert (task.classes, task.modality, task.channels) == (("background", "tumour"), "MR", 1)
    assert task.spacing == (0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clases = []", "unknown key 'clases', did you mean 'classes'"),
        ("colour = 3", "unknown key 'colour'; known keys are"),
        ('classes = ["tumour"]', "'classes' is .*background first"),
        ('classes = ["b", "t"]\n[regions]\nwhole = ["tt"]', "region 'whole' names 'tt', did you mean 't'"),
        ('classes = ["b", "t"]\n[regions]\nwhole = ["b"]', "region 'whole' names 'b'; a region is made of .* t"),
        ('classes = ["b", "t"]\n[regions]\nwhole = ["t", "t"]', "the region 'whole' names a class twice"),
        ('classes = ["b", "t"]\n[regions]\nwhole = []', r"'regions' is .*write a table \[regions\]"),
        ('classes = ["a", "a"]', "'classes' is .*differ"),
        ("spatial_dims = 4", "'spatial_dims' is 4.*write 2 or 3"),
        ("name = ", "cannot be read as TOML"),
        ("spacing = [1.0, 1.0, 1.0]", "'spacing' has 3 numbers, but the files have 2 axes"),
        ('sites = ["nroth"]', "'sites' names 'nroth'"),
        ("spatial_dims = 3", "the task is 3D, but the images of site 'east' are 2D"),
    ],
)
def test_a_wrong_description_gets_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    (two_sites(tmp_path) / "federation.toml").write_text(text)
    with pytest.raises(PolyclinicError, match=words):
        open_federation(tmp_path)


def test_a_key_on_which_the_parser_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text("a." * 20_000 + "a = 1")
    with pytest.raises(PolyclinicError, match=r"federation\.toml.*more than 30 parts"):
        read_federation_file(path)
