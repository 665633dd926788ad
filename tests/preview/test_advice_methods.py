"""Which methods are tried, and which rows of which tables speak for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advice_support import NOTHING, VENTRICLE, VESSELS, VOLUMES, row, table
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.methods.expression import parse_method
from polyclinic.preview.advice import Advice, advise
from polyclinic.preview.advice_methods import MethodAdvice
from polyclinic.preview.evidence import Evidence

NUCLEI = replace(VESSELS, polarity="mixed", pictures=True)


def by_name(advice: Advice) -> dict[str, MethodAdvice]:
    return {one.method: one for one in advice.methods}


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("labelled", [None, 5])
@pytest.mark.parametrize("traits", [VESSELS, VENTRICLE, VOLUMES])
def test_every_method_exists_and_stands_once_behind_the_reference(
    traits: FederationTraits, labelled: int | None, unseen: bool
) -> None:
    advice = advise(traits, NOTHING, unseen, labelled)
    names = [one.method for one in advice.methods]
    assert len(set(names)) == len(names)
    assert len(advice.compared) > 1, "there is something to compare"
    assert names[0] == ("fl_lower" if labelled else "fedavg")
    for name in names:
        assert parse_method(name)
    assert all(one.verdict == "not measured" for one in advice.methods)
    assert (advice.nearest, advice.alike, advice.ceiling) == (None, False, ())


def test_what_stays_at_a_site_is_no_advice_for_sites_that_take_no_part() -> None:
    known, unseen = advise(VESSELS, NOTHING).compared, advise(VESSELS, NOTHING, unseen=True).compared
    assert {"fedbn", "local"} <= set(known)
    assert not {"fedbn", "local"} & set(unseen)
    assert "fedavg(weighting=uniform)" in advise(VENTRICLE, NOTHING, unseen=True).compared


def test_few_labels_have_bounds_instead_of_models_at_home() -> None:
    assert advise(VESSELS, NOTHING, labelled=5).compared == ("fl_lower", "fl_upper", "fixmatch", "fgasl")
    without = advise(replace(VESSELS, labelled=0.5), NOTHING).compared
    assert "fl_upper" not in without, "without a budget no label is hidden: both bounds are one run"


def test_a_single_site_has_no_other_to_leave() -> None:
    assert "local" not in advise(replace(VESSELS, sites=1), NOTHING).compared


def test_the_nearest_federation_speaks_first_and_its_best_gain_is_tried() -> None:
    ventricle = table(VENTRICLE, "ventricle", row("fedbcs", 3, "better"))
    vessels = table(VESSELS, "vessels", row("scaffold", 2, "better"), row("fedbcs", -10, "worse"))
    advice = advise(replace(VESSELS, width=2.8), Evidence((ventricle, vessels), {"fedbcs": 1.5}))
    assert advice.nearest is not None
    assert (advice.nearest.federation, advice.alike) == ("vessels", True)
    found = by_name(advice)
    assert "largest gain on vessels" in found["scaffold"].reason
    assert [m.table.federation for m in found["fedbcs"].measured] == ["vessels", "ventricle"]
    assert [m.alike for m in found["fedbcs"].measured] == [True, False]
    assert (found["fedbcs"].verdict, found["fedbcs"].cost) == ("worse", 1.5)
    assert found["fedbcs"].left_out == "worse on vessels"
    assert "fedbcs" not in advice.compared, "worse on a federation like this one"
    assert advice.compared[:2] == ("fedavg", "scaffold")


def test_what_was_worse_on_another_kind_of_federation_is_still_tried() -> None:
    far = table(VENTRICLE, "ventricle", row("fedbcs", -10, "worse"))
    advice = advise(VESSELS, Evidence((far,), {}))
    assert not advice.alike
    assert "fedbcs" in advice.compared
    near = table(VESSELS, "vessels")
    assert "fedbcs" in advise(VESSELS, Evidence((near, far), {})).compared, "the row is of another kind all the same"


def test_upper_references_are_never_advised_but_shown_for_orientation() -> None:
    known = Evidence((table(VESSELS, "vessels", row("central", 20, "better"), row("pathfl", 2, "better")),), {})
    advice = advise(VESSELS, known)
    assert "central" not in by_name(advice)
    assert [(m.table.federation, m.row.dice) for m in advice.ceiling] == [("vessels", 90.0)]
    assert advise(VESSELS, known, unseen=True).ceiling == advise(VESSELS, known, labelled=5).ceiling == ()
    assert advice.compared[1] == "pathfl", "once, at its first place"
    assert advice.compared.count("pathfl") == 1
    assert "largest gain" in advice.methods[1].reason


def test_training_at_home_is_shown_with_its_number_and_compared_even_where_it_was_worse() -> None:
    for verdict in ("better", "worse"):
        advice = advise(VESSELS, Evidence((table(VESSELS, "vessels", row("local", 2, verdict)),), {}))
        assert by_name(advice)["local"].measured[0].row.verdict == verdict
        assert "local" in advice.compared


def test_tables_are_those_of_the_same_question() -> None:
    """Few labels and unseen sites have tables of their own; where there are none, nothing was measured."""
    own = table(VESSELS, "own", row("fedbcs", 1, "better"))
    few = table(VESSELS, "few", row("fgasl", 1, "better"), labelled=12)
    unseen = table(VESSELS, "unseen", protocol="leave-one-site-out")
    known = Evidence((own, few, unseen), {})
    nearest = [advise(VESSELS, known).nearest, advise(VESSELS, known, labelled=5).nearest]
    nearest += [advise(VESSELS, known, unseen=True).nearest, advise(VESSELS, Evidence((few,), {})).nearest]
    assert [one.federation for one in nearest if one] == ["own", "few", "unseen"]


def test_of_one_federation_the_table_with_the_advised_intensities_speaks() -> None:
    gain = row("fedbcs", 1, "better")
    tables = [table(NUCLEI, "nuclei", gain, intensity=name) for name in ("site", "full-range", "zero-one")]
    for known in (tables, tables[::-1]):
        nearest = advise(NUCLEI, Evidence(tuple(known), {})).nearest
        assert nearest is not None
        assert nearest.intensity == "full-range"
        nearest = advise(replace(NUCLEI, polarity="brighter"), Evidence(tuple(known), {})).nearest
        assert nearest is not None
        assert nearest.intensity == "zero-one", "what a recipe has where nothing is advised"


def test_a_method_that_only_another_table_has_is_shown_with_what_differs_there() -> None:
    advised = table(NUCLEI, "nuclei", row("pathfl", -2, "not shown"), intensity="full-range")
    other = table(NUCLEI, "nuclei", row("pathfl", -3, "worse"), row("fedbn", 3, "not shown"), intensity="site")
    for known in ((advised, other), (other, advised)):
        found = by_name(advise(NUCLEI, Evidence(known, {})))
        assert [m.table for m in found["fedavg"].measured] == [advised], "one row a federation"
        pathfl, fedbn = found["pathfl"].measured[0], found["fedbn"].measured[0]
        assert (pathfl.row.difference, pathfl.apart) == (-2, {})
        assert (fedbn.table, fedbn.apart, fedbn.reference_dice) == (other, {"data.intensity": "site"}, 70.0)


def test_of_tables_with_the_same_intensities_the_one_that_trained_longest_speaks() -> None:
    tables = [
        table(VESSELS, "vessels", settings={"data.intensity": "zero-one", "training.rounds": rounds}, seeds=seeds)
        for rounds, seeds in ((30, 5), (60, 3), (60, 5))
    ]
    nearest = advise(VESSELS, Evidence(tuple(tables), {})).nearest
    assert nearest is tables[2]


def test_settings_of_a_table_that_are_not_advised_are_known() -> None:
    settings = {"data.intensity": "zero-one", "training.dice_classes": "all", "training.rounds": 20}
    measured = by_name(advise(VESSELS, Evidence((table(VESSELS, "v", settings=settings),), {})))["fedavg"].measured
    assert measured[0].differs == {"training.dice_classes": "all"}, "thin structures are advised the foreground's"


@pytest.mark.parametrize("method", ["fsf3a", "fedfocaltversky", "fsf3a(weighting=uniform)+proximal"])
def test_a_loss_of_dice_alone_is_left_out_where_volumes_are_cut_into_patches(method: str) -> None:
    known = Evidence((table(VOLUMES, "volumes", row(method, 2, "better")),), {})
    assert method in advise(VOLUMES, known).compared
    advice = advise(replace(VOLUMES, size=(112, 112, 70)), known)
    assert {method, "fsf3a"} & set(advice.compared) == set()
    assert by_name(advice)[method].left_out.startswith("not with patches")
    assert "local" in advice.compared
