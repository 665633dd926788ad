"""Advice: settings by the images, methods by what was measured on federations that are alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyclinic.data.federation_traits import FederationTraits
from polyclinic.methods.expression import parse_method
from polyclinic.preview.advice import Advice, advise
from polyclinic.preview.evidence import Evidence, MeasuredRow, MeasuredTable

VESSELS = FederationTraits(4, 20, 42, 1.0, 2, 1, 0.086, 2.5, 1.08, "unclear", (256, 256), 1.0)
VENTRICLE = FederationTraits(3, 80, 100, 1.0, 2, 1, 0.025, 24.0, 1.5, "brighter", (192, 192), 1.0)
VOLUMES = FederationTraits(3, 33, 80, 1.0, 3, 2, 0.05, 4.7, 0.16, "darker", (43, 58, 47), 1.0)
NOTHING = Evidence((), {})


def table(traits: FederationTraits, name: str, *rows: MeasuredRow, **changes: object) -> MeasuredTable:
    plain = MeasuredTable(
        name, name, f"benchmarks/real/{name}.md", "own-test", None, "zero-one", "fedavg", 3, 26, traits,
        (MeasuredRow("fedavg", 70.0, None, None, None, ""), *rows),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def keys(advice: Advice) -> dict[str, str]:
    return {setting.key: setting.value for setting in advice.settings}


def test_thin_structures_are_trained_in_patches_and_bulky_ones_in_whole_images() -> None:
    thin = {"training.dice_classes": '"foreground"'}
    assert keys(advise(VESSELS, NOTHING)) == {"data.patch": "[96, 96]", "data.foreground": "0.5", **thin}
    assert keys(advise(VENTRICLE, NOTHING)) == {"data.size": "[192, 192]"}
    assert keys(advise(replace(VESSELS, size=(64, 64)), NOTHING)) == thin, "a patch of a small image is the image"
    assert keys(advise(replace(VENTRICLE, size=(2000, 3000)), NOTHING)) == {}


def test_bulky_structures_in_the_middle_ask_for_the_middle_alone() -> None:
    """Rounded up to what four poolings divide, where a good part of the image is left out by it."""
    middle = {"data.crop": "[112, 128]", "data.size": "[112, 128]"}
    assert keys(advise(replace(VENTRICLE, middle=(108, 120)), NOTHING)) == middle
    assert keys(advise(replace(VENTRICLE, middle=(170, 170)), NOTHING)) == {"data.size": "[192, 192]"}
    large = replace(VENTRICLE, size=(512, 512), middle=(130, 100))
    assert keys(advise(large, NOTHING)) == {"data.crop": "[144, 112]", "data.size": "[144, 112]"}
    small = replace(VENTRICLE, middle=(20, 100))
    assert keys(advise(small, NOTHING))["data.crop"] == "[64, 112]", "with what is around them"
    assert "data.crop" not in keys(advise(replace(small, size=(64, 100)), NOTHING))
    assert "data.crop" not in keys(advise(replace(VESSELS, middle=(100, 100)), NOTHING)), "thin: patches"
    assert "data.crop" not in keys(advise(replace(VOLUMES, middle=(20, 20, 20)), NOTHING))
    reason = advise(replace(VENTRICLE, middle=(108, 120)), NOTHING).settings[0].reason
    assert "nothing is found outside of it" in reason


def test_small_structures_all_over_the_image_are_trained_in_patches() -> None:
    nuclei = replace(VENTRICLE, width=16.0, size=(256, 256), middle=(256, 250))
    assert keys(advise(nuclei, NOTHING)) == {"data.patch": "[96, 96]", "data.foreground": "0.5"}
    assert keys(advise(replace(nuclei, width=40.0), NOTHING)) == {"data.size": "[256, 256]"}
    assert keys(advise(replace(nuclei, middle=(200, 200)), NOTHING)) == {
        "data.crop": "[208, 208]", "data.size": "[208, 208]",
    }  # fmt: skip


def test_large_volumes_are_trained_in_patches_that_three_poolings_divide() -> None:
    assert keys(advise(VOLUMES, NOTHING)) == {}
    wide = keys(advise(replace(VOLUMES, size=(144, 144, 18), anisotropy=5.0), NOTHING))
    assert wide["data.patch"] == "[64, 64, 16]"
    assert wide["network.anisotropic"] == '"auto"'


@pytest.mark.parametrize(("size", "depth"), [((16, 16), "3"), ((12, 40), "2"), ((2, 9), "1"), ((32, 32), None)])
def test_small_images_get_a_network_that_pools_less(size: tuple[int, ...], depth: str | None) -> None:
    assert keys(advise(replace(VESSELS, size=size), NOTHING)).get("network.depth") == depth


def test_mixed_polarity_asks_for_the_range_of_pictures_and_else_for_intensities_of_the_site() -> None:
    mixed = replace(VESSELS, polarity="mixed")
    assert keys(advise(mixed, NOTHING))["data.intensity"] == '"site"'
    assert keys(advise(replace(mixed, pictures=True), NOTHING))["data.intensity"] == '"full-range"'
    assert "data.intensity" not in keys(advise(VESSELS, NOTHING))


def test_sites_of_very_different_size_take_the_same_steps() -> None:
    assert "training.steps_per_epoch" in keys(advise(replace(VESSELS, largest_site=80), NOTHING))
    assert "training.steps_per_epoch" not in keys(advise(replace(VESSELS, largest_site=79), NOTHING))


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("labelled", [None, 5])
@pytest.mark.parametrize("traits", [VESSELS, VENTRICLE, VOLUMES])
def test_every_method_exists_and_stands_once_behind_the_reference(
    traits: FederationTraits, labelled: int | None, unseen: bool
) -> None:
    advice = advise(traits, NOTHING, unseen, labelled)
    names = [one.method for one in advice.methods]
    assert len(set(names)) == len(names) > 1
    assert names[0] == ("fl_lower" if labelled else "fedavg")
    for name in names:
        assert parse_method(name)
    assert all(one.verdict == "not measured" for one in advice.methods)
    assert (advice.nearest, advice.alike) == (None, False)


def test_what_stays_at_a_site_is_no_advice_for_sites_that_take_no_part() -> None:
    assert "fedbn" in advise(VESSELS, NOTHING).compared
    assert "fedbn" not in advise(VESSELS, NOTHING, unseen=True).compared


def test_the_nearest_federation_speaks_first_and_its_best_gain_is_tried() -> None:
    better = MeasuredRow("scaffold", 72.0, 2.0, 1.0, 3.0, "better")
    worse = MeasuredRow("fedbcs", 60.0, -10.0, -12.0, -8.0, "worse")
    other = MeasuredRow("fedbcs", 80.0, 3.0, 1.0, 5.0, "better")
    known = Evidence((table(VENTRICLE, "ventricle", other), table(VESSELS, "vessels", better, worse)), {"fedbcs": 1.5})
    advice = advise(replace(VESSELS, width=2.8), known)
    assert advice.nearest is not None
    assert (advice.nearest.federation, advice.alike) == ("vessels", True)
    by_name = {one.method: one for one in advice.methods}
    assert "largest gain on vessels" in by_name["scaffold"].reason
    assert [m.table.federation for m in by_name["fedbcs"].measured] == ["vessels", "ventricle"]
    assert (by_name["fedbcs"].verdict, by_name["fedbcs"].cost) == ("worse", 1.5)
    assert "fedbcs" not in advice.compared, "worse on a federation like this one"
    assert advice.compared[:2] == ("fedavg", "scaffold")


def test_what_was_worse_on_another_kind_of_federation_is_still_tried() -> None:
    worse = MeasuredRow("fedbcs", 60.0, -10.0, -12.0, -8.0, "worse")
    advice = advise(VESSELS, Evidence((table(VENTRICLE, "ventricle", worse),), {}))
    assert not advice.alike
    assert "fedbcs" in advice.compared


def test_upper_references_are_never_advised() -> None:
    central = MeasuredRow("central", 90.0, 20.0, 18.0, 22.0, "better")
    gain = MeasuredRow("pathfl", 72.0, 2.0, 1.0, 3.0, "better")
    advice = advise(VESSELS, Evidence((table(VESSELS, "vessels", central, gain),), {}))
    assert "central" not in advice.compared
    assert advice.compared[1] == "pathfl", "once, at its first place"
    assert advice.compared.count("pathfl") == 1
    assert "largest gain" in advice.methods[1].reason


def test_tables_are_those_of_the_same_question() -> None:
    """Few labels and unseen sites have tables of their own; where there are none, nothing was measured."""
    own = table(VESSELS, "own", MeasuredRow("fedbcs", 71.0, 1.0, 0.5, 1.5, "better"))
    few = table(VESSELS, "few", MeasuredRow("fgasl", 71.0, 1.0, 0.5, 1.5, "better"), labelled=12)
    unseen = table(VESSELS, "unseen", protocol="leave-one-site-out")
    known = Evidence((own, few, unseen), {})
    nearest = [advise(VESSELS, known).nearest, advise(VESSELS, known, labelled=5).nearest]
    nearest += [advise(VESSELS, known, unseen=True).nearest, advise(VESSELS, Evidence((few,), {})).nearest]
    assert [one.federation for one in nearest if one] == ["own", "few", "unseen"]


def test_of_one_federation_the_table_with_the_advised_intensities_speaks() -> None:
    mixed = replace(VESSELS, polarity="mixed", pictures=True)
    row = MeasuredRow("fedbcs", 71.0, 1.0, 0.5, 1.5, "better")
    tables = [table(mixed, "nuclei", row, intensity=name) for name in ("site", "full-range", "zero-one")]
    for known in (tables, tables[::-1]):
        nearest = advise(mixed, Evidence(tuple(known), {})).nearest
        assert nearest is not None
        assert nearest.intensity == "full-range"
        nearest = advise(replace(mixed, polarity="brighter"), Evidence(tuple(known), {})).nearest
        assert nearest is not None
        assert nearest.intensity == "zero-one", "what a recipe has where nothing is advised"


def test_small_federations_get_a_word_of_warning() -> None:
    assert advise(VESSELS, NOTHING).notes == ()
    notes = " ".join(advise(replace(VESSELS, sites=2, smallest_site=6), NOTHING, labelled=2).notes)
    assert "6 images" in notes
    assert "two sites" in notes
    assert "no federation" in " ".join(advise(replace(VESSELS, sites=1), NOTHING).notes)
