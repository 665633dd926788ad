"""Advice as a whole: which federation it is from, and what to know before trusting it."""

from __future__ import annotations

from dataclasses import replace

from advice_support import NOTHING, VENTRICLE, VESSELS, VOLUMES, row, table
from polyclinic.preview.advice import advise
from polyclinic.preview.evidence import Evidence

OWN = Evidence((table(VESSELS, "vessels", row("fedbcs", 1, "better")),), {})


def test_it_says_which_federation_its_numbers_are_of() -> None:
    assert advise(VESSELS, OWN).basis == "The measured federation most like this one is vessels"
    assert "the nearest is vessels" in advise(VENTRICLE, OWN).basis
    assert advise(VOLUMES, OWN).basis == "No table is of a federation of this kind yet"


def test_it_says_that_no_table_has_tested_unseen_sites() -> None:
    """Rather than that no federation of this kind was measured: with own test images it was."""
    for labelled in (None, 5):
        assert advise(VESSELS, OWN, True, labelled).basis == "No table has tested sites that take no part yet"
    left_out = Evidence((table(VENTRICLE, "heart", protocol="leave-one-site-out"),), {})
    assert "at sites that take no part; the nearest is heart" in advise(VESSELS, left_out, True).basis


def test_it_says_where_few_labels_were_measured() -> None:
    assert advise(VESSELS, OWN, labelled=5).basis == "No table is of a federation of this kind with few labels yet"
    few = Evidence((table(VENTRICLE, "heart", labelled=6),), {})
    assert "measured with few labels; the nearest is heart" in advise(VESSELS, few, labelled=5).basis
    assert advise(VENTRICLE, few, labelled=5).basis == "The measured federation most like this one is heart"


def test_small_federations_get_a_word_of_warning() -> None:
    assert advise(VESSELS, NOTHING).notes == ()
    notes = " ".join(advise(replace(VESSELS, sites=2, smallest_site=6), NOTHING, labelled=2).notes)
    assert "6 images" in notes
    assert "two sites" in notes
    assert "no federation" in " ".join(advise(replace(VESSELS, sites=1), NOTHING).notes)
    assert "1 image," in " ".join(advise(replace(VESSELS, smallest_site=1), NOTHING).notes)


def test_a_site_that_is_left_out_is_tested_whole() -> None:
    assert advise(replace(VESSELS, smallest_site=6), NOTHING, unseen=True).notes == ()


def test_two_sites_are_told_that_ssa_is_the_plain_mean() -> None:
    assert "SSA" in " ".join(advise(replace(VESSELS, sites=2), NOTHING).notes)
    assert "SSA" not in " ".join(advise(replace(VESSELS, sites=2, shift=0.1), NOTHING).notes), "without PathFL"
