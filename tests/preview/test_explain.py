"""What is said before a run is what the run then counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.methods.registry import methods
from polyclinic.preview.explain import explanation, print_explanation
from polyclinic.recipe.files import load_recipe
from polyclinic.report.run_table import print_run


@pytest.mark.parametrize("protocol", ["own-test", "leave-one-site-out"])
@pytest.mark.parametrize("method", list(methods()))
def test_the_declared_bytes_are_those_that_every_site_sends_in_every_round(
    method: str, protocol: str, finished: Callable[..., Path]
) -> None:
    run = finished(method, f"protocol.kind={protocol}", "training.rounds=2")
    facts = explanation(load_recipe(run / "recipe.toml"))
    assert json.loads(json.dumps(facts)) == facts
    known = all(row["bytes"] is not None for row in facts["shared"])
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        shared = {
            site: sum(sites[site]["bytes"] for sites in event["shared_up"].values()) for site in event["bytes_up"]
        }
        assert event["bytes_up"].keys() == (set() if facts["images_leave"] else set(event["sites"]))
        assert event["bytes_up"] == {site: facts["weights_bytes"] + count for site, count in shared.items()}
        if known:
            assert set(shared.values()) <= {facts["shared_bytes"]}
    assert facts["weights_bytes"] == sum(row["bytes"] for row in facts["weights"])


def test_norm_layers_leave_only_when_an_unseen_site_needs_them(tiny_recipe_file: Path) -> None:
    own = explanation(load_recipe(tiny_recipe_file, method="fedbn"))
    unseen = explanation(load_recipe(tiny_recipe_file, ["protocol.kind=leave-one-site-out"], method="fedbn"))
    assert own["shared"] == []
    assert {row["tensor"] for row in unseen["shared"]} == set(unseen["kept"]) == set(own["kept"])
    assert unseen["shared_bytes"] == own["kept_bytes"] > 0
    assert not {row["tensor"] for row in own["weights"]} & set(own["kept"])


def test_prototypes_are_counted_before_the_run_and_in_its_record(
    finished: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Table 3 of FedBCS: two prototypes a class and site, and what they weigh."""
    run = finished("fedbcs", "training.rounds=2")
    facts = explanation(load_recipe(run / "recipe.toml"))
    assert sum(facts["prototypes"]) == 4
    print_explanation(facts)
    assert "Prototypes uploaded in a round: at most 4." in capsys.readouterr().out
    shared = json.loads((run / "summary.json").read_text())["shared_up"]["cdpa"]
    assert shared.keys() == {"north", "south"}
    assert all(amount == {"prototypes": 4, "bytes": facts["shared_bytes"]} for amount in shared.values())
    print_run(json.loads((run / "summary.json").read_text()))
    assert "cdpa: 4.00 prototypes," in capsys.readouterr().out
    assert explanation(load_recipe(run / "recipe.toml", method="fedavg"))["prototypes"] == []


def test_a_bounded_number_of_prototypes_is_announced(
    tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedContrast: at most 8 + 1 prototypes of 256 numbers and their classes; FedPLVM's number has no bound."""
    facts = explanation(load_recipe(tiny_recipe_file, method="fedcontrast"))
    assert facts["prototypes"] == [9]
    assert sum(row["bytes_at_most"] for row in facts["shared"]) == 9 * (256 * 4 + 8) + 8
    print_explanation(facts)
    assert "Prototypes uploaded in a round: at most 9." in capsys.readouterr().out
    print_explanation(explanation(load_recipe(tiny_recipe_file, method="fedplvm")))
    assert "Prototypes uploaded in a round: a number known at run time." in capsys.readouterr().out


def test_averaged_images_are_called_pictures(tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(explanation(load_recipe(tiny_recipe_file, method="fedmix(images=4)")))
    said = " ".join(capsys.readouterr().out.split())
    assert "PICTURES LEAVE: fedmix sends means of 4 images and of their labels" in said
    assert "Never leaves: any single image or label." in said
    print_explanation(explanation(load_recipe(tiny_recipe_file, method="fedmix(lam=0)")))
    said = " ".join(capsys.readouterr().out.split())
    assert "PICTURES" not in said
    assert "Never leaves: every image and label." in said


def test_nothing_leaves_with_local_and_all_images_with_central(tiny_recipe_file: Path) -> None:
    local, central = (explanation(load_recipe(tiny_recipe_file, method=name)) for name in ("local", "central"))
    assert (local["weights"], local["shared"], local["images_leave"]) == ([], [], False)
    assert (central["weights"], central["images_leave"]) == ([], True)


def test_warnings_of_components_come_before_the_run(tiny_recipe_file: Path) -> None:
    facts = explanation(load_recipe(tiny_recipe_file, ["network.norm=batch-nostats"], method="fedbn"))
    assert any("local_norm keeps nothing" in warning for warning in facts["warnings"])


def test_a_changed_method_does_not_speak_for_the_whole_one(tiny_recipe_file: Path) -> None:
    def said(method: str) -> tuple[str, str]:
        facts = explanation(load_recipe(tiny_recipe_file, method=method))
        return facts["summary"], facts["paper"]

    whole = said("fedbcs")
    assert whole == said("fedbcs(tau=0.5)") == said("fedbcs+cdpa(tau=0.5)")
    assert said("fedbcs-fsr") == ("fedbcs without fsr.", f"fedbcs: {whole[1]}")
    assert said("fedprox+no_exchange")[0] == "fedprox without weighted_mean and with no_exchange."
    assert said("local+cdpa") == ("local with cdpa.", "")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("local+cdpa", ["cdpa: prototypes leave the sites although no weights are exchanged"]),
        ("fedproto+no_exchange", ["class_prototypes: prototypes leave the sites although"]),
        ("local+cluster_prototypes", ["cluster_prototypes: prototypes leave the sites although"]),
        ("harmofl+no_exchange", ["amplitude_normalisation: what the server sets never reaches a site"]),
        ("central+amplitude_normalisation", ["amplitude_normalisation: finds no other site to exchange with"]),
        ("local+cdpa(weight=0)", []),
        ("central", []),
        ("local", []),
        ("harmofl", []),
        ("fedbcs", []),
    ],
)
def test_components_that_do_not_fit_each_other_are_warned_of(
    method: str, words: list[str], tiny_recipe_file: Path
) -> None:
    warnings = explanation(load_recipe(tiny_recipe_file, method=method))["warnings"]
    assert [warning[: len(start)] for warning, start in zip(warnings, words, strict=True)] == words


def test_pooled_data_leaves_nothing_to_share(tiny_recipe_file: Path) -> None:
    facts = explanation(load_recipe(tiny_recipe_file, method="central+cdpa"))
    assert (facts["shared"], facts["shared_bytes"], facts["prototypes"]) == ([], 0, [])


def test_what_comes_back_and_what_the_server_sets_is_said(
    tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = explanation(load_recipe(tiny_recipe_file, method="pathfl"))
    assert list(facts["comes_back"]) == ["cse"]
    assert [name.rsplit(".", 1)[1] for name in facts["statistics"]] == ["count", "deviation", "mean"]
    print_explanation(facts)
    shown = " ".join(capsys.readouterr().out.split())
    assert "beside the weights, from cse: the last style of every site" in shown
    assert "and 3 buffers that the server sets" in shown
    plain = explanation(load_recipe(tiny_recipe_file, method="fedavg"))
    assert (plain["comes_back"], plain["statistics"]) == ({}, [])


def test_what_a_site_computes_and_keeps_is_said(tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = explanation(load_recipe(tiny_recipe_file, ["data.intensity=site", "data.nonzero=true"]))
    print_explanation(facts)
    words = (
        "Computed at each site, and never sent: data.intensity = site: a mean and a deviation over non-zero voxels of "
        "the site's training images (of all its images where it is only tested), which scale every image there and stay"
    )
    assert words in " ".join(capsys.readouterr().out.split())
    assert not any("intensity" in row["what"] for row in facts["shared"])
    assert explanation(load_recipe(tiny_recipe_file))["stays"] == ""


@pytest.mark.parametrize(
    ("method", "overrides", "words"),
    [
        ("fl_lower", ["data.labelled=3"], "data.labelled = 3 of each site; the others are never read."),
        ("fl_upper", ["data.labelled=3"], "all are read, those that data.labelled hides from other methods too."),
        ("fl_lower", [], "Labels of training images: all are read."),
    ],
)
def test_which_labels_are_read_is_said(
    method: str, overrides: list[str], words: str, tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_explanation(explanation(load_recipe(tiny_recipe_file, overrides, method=method)))
    assert words in " ".join(capsys.readouterr().out.split())


def test_brackets_in_names_are_shown_as_they_are(tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = explanation(load_recipe(tiny_recipe_file, method="fedbcs"))
    facts |= {"method": "mine(stages=[encoder0])", "summary": "Over [classes].", "paper": "A [paper]"}
    facts |= {"federation": "hostile[/bold]"}
    facts["components"][0] |= {"summary": "Clips [images]."}
    facts["shared"][0] |= {"what": "means [of features]"}
    print_explanation(facts)
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("mine(stages=[encoder0])", "Over [classes].", "A [paper]", "hostile[/bold]", "Clips [images]."):
        assert text in shown
    assert "[of" in shown
