"""Every embedded federation is complete."""

from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.phantoms.catalogue import DEMOS, find_demo


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_says_what_it_is(name: str) -> None:
    demo = find_demo(name)
    assert demo is DEMOS[name]
    assert demo.classes[0] == "background"
    assert len(demo.size) == (3 if demo.suffix == ".nii.gz" else 2) >= demo.spatial_dims
    assert len(set(demo.cases.values())) >= 3, "sites have unequal numbers of cases"
    assert {member for members in demo.regions.values() for member in members} <= set(demo.classes[1:])


@pytest.mark.parametrize(
    ("name", "hint"), [("nucle", "did you mean 'nuclei'"), ("xyz", "choose one of nuclei, prostate")]
)
def test_an_unknown_name_gets_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(PolyclinicError, match=hint):
        find_demo(name)
