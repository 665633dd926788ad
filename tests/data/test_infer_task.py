"""What federation.toml leaves open is inferred, or asked for in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_support import two_sites, write_picture, write_volume
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import prepare
from polyclinic.recipe import DataSettings


def test_classes_come_from_label_values(tmp_path: Path) -> None:
    write_picture(tmp_path / "a/images/x.png", np.zeros((4, 4)))
    write_picture(tmp_path / "a/labels/x.png", [[0, 3], [0, 0]])
    assert open_federation(tmp_path).task.classes == ("background", "class 1", "class 2", "class 3")


def test_grey_levels_are_not_taken_for_classes(tmp_path: Path) -> None:
    write_picture(tmp_path / "a/images/x.png", np.zeros((4, 4)))
    write_picture(tmp_path / "a/labels/x.png", [[0, 128], [255, 0]])
    with pytest.raises(PolyclinicError, match=r"values up to 255.*write 'classes'"):
        open_federation(tmp_path)


def test_volumes_make_a_3d_task(tmp_path: Path) -> None:
    write_volume(tmp_path / "a/images/x.nii.gz", (6, 5, 4, 2))
    write_volume(tmp_path / "a/labels/x.nii.gz")
    task = open_federation(tmp_path).task
    assert (task.spatial_dims, task.channels, task.classes) == (3, 2, ("background", "class 1"))


def test_a_2d_task_cuts_volumes_and_counts_neighbours(tmp_path: Path) -> None:
    write_volume(tmp_path / "a/images/x.nii.gz", (6, 5, 4, 2))
    (tmp_path / "federation.toml").write_text('spatial_dims = 2\nclasses = ["background", "x"]')
    federation = open_federation(tmp_path, DataSettings(neighbours=1))
    assert federation.volumes_as_slices
    assert (federation.task.channels, federation.task.image_channels) == (6, 2)


def test_neighbours_need_volumes(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"data\.neighbours"):
        open_federation(two_sites(tmp_path), DataSettings(neighbours=1))


def test_a_third_axis_of_one_is_a_2d_image(tmp_path: Path) -> None:
    write_volume(tmp_path / "a/images/x.nii.gz", (6, 5, 1))
    write_volume(tmp_path / "a/labels/x.nii.gz", (6, 5, 1))
    federation = open_federation(tmp_path)
    assert federation.task.spatial_dims == 2
    assert prepare(federation.sites["a"][0], federation, DataSettings())[0].image.shape == (1, 6, 5)


def test_sites_must_agree_on_dimensions(tmp_path: Path) -> None:
    write_volume(tmp_path / "a/images/x.nii.gz")
    write_picture(tmp_path / "b/images/x.png", np.zeros((4, 4)))
    with pytest.raises(PolyclinicError, match="site 'b' has 2D images and site 'a' volumes"):
        open_federation(tmp_path)


def test_no_label_at_all_leaves_the_classes_unknown(tmp_path: Path) -> None:
    write_picture(tmp_path / "a/images/x.png", np.zeros((4, 4)))
    with pytest.raises(PolyclinicError, match="the classes are unknown"):
        open_federation(tmp_path)
