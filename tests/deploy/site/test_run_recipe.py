"""A server that changes the recipe of a run."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from flower_support import make_handler, png_recipe, reason_of, request_for
from polyclinic.exchange.audit import read_audit
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Update
from polyclinic.recipe.files import recipe_text
from polyclinic.recipe.fingerprint import LONGEST_RECIPE, recipe_sha256


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training": {"lr": 0.5}}, "training.lr"),
        ({"training": {"rounds": 1000}}, "training.rounds"),
        ({"data": {"split": [0.4, 0.3, 0.3]}}, "data.split"),
        ({"seed": 9}, "seed"),
        ({"method": "fedprox"}, "method"),
    ],
)
def test_a_swapped_recipe_within_a_run_is_refused(
    change: dict[str, Any], named: str, tiny_federation: Path, tmp_path: Path
) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation, device="cpu")
    recipe = png_recipe(tiny_federation)
    described = handler.answer(request_for("describe", recipe, Broadcast(-1, {})))
    assert isinstance(described, Description)
    other = png_recipe(tiny_federation, **change)
    for one in (handler, make_handler(tmp_path / "home", tiny_federation, device="cpu")):
        for asked in (
            request_for("describe", other),
            request_for("train", other),
            request_for("evaluate", other, split="test"),
        ):
            reason = reason_of(one.answer(asked))
            assert reason.startswith(f"refused: the recipe of this run has changed ({named}")
    assert isinstance(handler.answer(request_for("train", recipe)), Update)
    assert isinstance(handler.answer(replace(request_for("train", other), run="run-2")), Update)


def test_what_a_server_settles_after_the_descriptions_or_changes_on_a_resume_is_no_change(
    tiny_federation: Path, tmp_path: Path
) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation, device="cpu")
    recipe = png_recipe(tiny_federation)
    assert isinstance(handler.answer(request_for("describe", recipe, Broadcast(-1, {}))), Description)
    settled = png_recipe(
        tiny_federation, evaluation={"units": "pixel"}, training={"quorum": 1}, tracking={"tensorboard": True},
        engine={"deadline": 7, "gather": 1, "name": "flower"},
    )  # fmt: skip
    assert isinstance(handler.answer(request_for("train", settled)), Update)
    assert isinstance(handler.answer(request_for("evaluate", settled, split="val")), Evaluation)
    assert isinstance(handler.answer(request_for("describe", recipe, Broadcast(-1, {}))), Description)


@pytest.mark.parametrize(
    "broken",
    [
        "[tracking]\ntensorboard = 5",
        "federation = 5",
        "[data]\nsites = []",
        "[data]\ncache = 5",
        "[engine]\ndevice = 5",
    ],
)
def test_a_key_that_the_site_replaces_hides_no_change(broken: str, tiny_federation: Path, tmp_path: Path) -> None:
    """The site takes its own value, so the recipe would run; without a fingerprint it could then be swapped."""
    handler = make_handler(tmp_path / "home", tiny_federation, device="cpu")
    recipe, other = png_recipe(tiny_federation), png_recipe(tiny_federation, training={"lr": 0.5})
    assert isinstance(handler.answer(request_for("train", recipe)), Update)
    table = tomllib.loads(recipe_text(other))
    for key, value in tomllib.loads(broken).items():
        table[key] = {**table[key], **value} if isinstance(value, dict) else value
    reply = handler.answer(replace(request_for("train", other), recipe=tomli_w.dumps(table)))
    assert "the recipe of this run has changed (training.lr)" in reason_of(reply)


def test_a_recipe_that_the_policy_refuses_binds_no_run_and_leaves_no_folder(
    tiny_federation: Path, tmp_path: Path
) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation, policy='methods = ["fedprox"]\nminimum_images = 1')
    described = handler.answer(request_for("describe", png_recipe(tiny_federation), Broadcast(-1, {})))
    assert reason_of(described).startswith("refused: ")
    assert not (tmp_path / "home" / "runs").exists()


def test_a_damaged_memory_of_the_recipe_lets_nothing_leave(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation, device="cpu")
    asked = request_for("train", png_recipe(tiny_federation))
    assert isinstance(handler.answer(asked), Update)
    file = tmp_path / "home" / "runs" / "run-1" / "recipe.toml"
    assert file.read_text() == asked.recipe
    file.write_text("half a [")
    assert "something is wrong with the site's files" in reason_of(handler.answer(asked))


def test_a_recipe_without_end_is_not_kept(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation, device="cpu")
    asked = request_for("train", png_recipe(tiny_federation))
    long = replace(asked, recipe=asked.recipe + "#" * LONGEST_RECIPE)
    assert "longer than" in reason_of(handler.answer(long))
    assert not (tmp_path / "home" / "runs").exists()


def test_every_line_of_the_audit_says_what_was_asked(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation, device="cpu")
    recipe, other = png_recipe(tiny_federation), png_recipe(tiny_federation, "fedprox")
    handler.answer(request_for("describe", recipe, Broadcast(-1, {})))
    handler.answer(request_for("train", recipe))
    handler.answer(request_for("train", other))  # refused
    handler.answer(request_for("train", recipe, Broadcast(0, {})))  # fails
    handler.answer(replace(request_for("train", recipe), recipe="not toml ["))
    handler.serve({}, {"act": "delete", "recipe": recipe_text(other)})
    handler.serve({}, {"act": "delete"})
    entries = list(read_audit(tmp_path / "home" / "audit.jsonl"))
    one, two = recipe_sha256(recipe), recipe_sha256(other)
    assert [(e["act"], e["recipe_sha256"], e["method"]) for e in entries] == [
        ("describe", one, "fedavg"),
        ("train", one, "fedavg"),
        ("train", two, "fedprox"),
        ("train", one, "fedavg"),
        ("train", "", ""),
        ("", two, "fedprox"),
        ("", "", ""),
    ]
    assert entries[4]["recipe_text_sha256"], "what cannot be read can still be recognised"
    assert "lr" not in json.dumps(entries[1]), "the recipe itself is in runs/RUN"
