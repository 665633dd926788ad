"""What the advised methods cost: as `polyclinic cost` says, from much smaller images."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.preview.advice_cost import method_costs
from polyclinic.preview.cost import costs
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.plan import plan_run
from support import write_tiny_federation


def recipe(federation: Path, **changes: object) -> Recipe:
    plain = make_recipe({"federation": str(federation), "network": {"width": 4, "depth": 2}})
    return with_changes(plain, {"data.size": (32, 48), "training.batch_size": 3, **changes})


@pytest.mark.parametrize(
    ("methods", "changes"),
    [
        (["fedavg", "fedbn", "local", "fedbcs", "pathfl"], {}),
        (["fl_lower", "fl_upper", "fixmatch", "fgasl"], {"data.labelled": 2, "training.steps_per_epoch": 5}),
        (["fl_lower", "fl_upper", "fixmatch"], {"data.labelled": 2}),
        (["fedavg", "pathfl"], {"data.size": (4, 48)}),
    ],
)
def test_the_work_at_the_sites_is_that_of_polyclinic_cost(
    methods: list[str], changes: dict[str, object], tiny_federation: Path
) -> None:
    asked = recipe(tiny_federation, **changes)
    flops = [row["flops"]["round"] for row in costs(asked, methods, seconds_limit=0)["methods"]]
    at_sites = [one["steps"] + one["site_besides_steps"] for one in flops]
    found = method_costs(plan_run(asked), methods)
    for method, whole in zip(methods, at_sites, strict=True):
        # Pairs of classes that noise happens to hold move CDPA's products by a little.
        assert found[method].work == pytest.approx(whole / at_sites[0], rel=1e-3), method


def test_without_a_number_of_steps_a_method_may_train_many_times_as_long(tmp_path: Path) -> None:
    """Why the advised recipe has one wherever labels are few."""
    clinics = write_tiny_federation(tmp_path / "clinics", {"north": 40, "south": 40})
    methods, few = ["fl_lower", "fixmatch"], {"data.labelled": 3}
    walks = method_costs(plan_run(recipe(clinics, **few)), methods)["fixmatch"].work
    fixed = method_costs(plan_run(recipe(clinics, **few, **{"training.steps_per_epoch": 5})), methods)["fixmatch"].work
    assert 2 < fixed < 3, "both kinds of images at each step, and the weak view once more"
    assert walks == pytest.approx(5 * fixed), "(3 + 21) // (2 * 3) + 1 steps, and one of FedAvg's"


def test_what_crosses_is_said_in_both_directions(tiny_federation: Path) -> None:
    methods = ["fedavg", "fedbn", "local", "fedbcs", "pathfl", "scaffold"]
    asked = recipe(tiny_federation)
    found = method_costs(plan_run(asked), methods)
    for row in costs(asked, methods, seconds_limit=0)["methods"]:
        up, down = row["bytes"]["up"], row["bytes"]["down"]
        assert found[row["method"]].bytes_up == up["weights"] + up["declared"] + sum(up["run_time"].values())
        assert found[row["method"]].bytes_down >= down["weights"]
    assert found["scaffold"].bytes_down > 1.9 * found["fedavg"].bytes_down, "control variates come back"
    assert (found["local"].bytes_up, found["local"].bytes_down, found["local"].leaves) == (0, 0, "nothing")


def test_what_leaves_is_said_in_words_and_in_a_short_list(tiny_federation: Path) -> None:
    found = method_costs(plan_run(recipe(tiny_federation)), ["fedavg", "fedbn", "fedbcs", "pathfl"])
    assert found["fedavg"].leaves.endswith("a round: weights")
    assert found["fedavg"].leaves_briefly == "weights"
    assert "mean embedding of each class" in found["fedbcs"].leaves
    assert "that stay" in found["fedbn"].leaves_briefly
    pathfl = found["pathfl"]
    assert pathfl.leaves_briefly == "weights; ssa (mean, deviation); cse (mean, deviation); afa (mean, variance)"
    assert len(pathfl.leaves) > 300, "every tensor in words"
