"""The request handler of a site: the same numbers as in one process, and no name or path in what leaves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flower_support import initial_weights, make_handler, png_recipe, reason_of, request_for, site_in_process
from polyclinic.deploy.keys.key_folders import make_site_key
from polyclinic.deploy.keys.signatures import is_signature
from polyclinic.deploy.site.request_handler import RequestHandler
from polyclinic.exchange.audit import end_of_chain, read_audit
from polyclinic.exchange.audit_head import read_head
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Failure, Update, from_tensors, to_tensors
from polyclinic.exchange.receipts import take_receipt
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import build_workspace
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.plan import plan_run
from support import assert_same, write_tiny_federation


@pytest.mark.parametrize(
    ("method", "name", "sections", "part"),
    [
        ("fedavg", "north", {}, "all"),
        ("fedbn", "south", {"data": {"labelled": 2}}, "all"),
        ("fedavg", "south", {"protocol": {"kind": "k-fold", "folds": 2}}, "fold-2"),
        ("fedavg", "north", {"protocol": {"kind": "leave-one-site-out"}}, "without-south"),
        ("fedavg", "south", {"data": {"intensity": "site"}}, "all"),
    ],
)
def test_a_request_handler_does_what_the_site_in_one_process_does(
    method: str, name: str, sections: dict[str, Any], part: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, method, **sections)
    site, workspace, _ = site_in_process(recipe, name, part, tmp_path / "plain")
    handler = make_handler(tmp_path / "home", tiny_federation, name, device="cpu")
    weights = dict(workspace.initial_exchanged)
    for number in range(2):
        reply = handler.answer(request_for("train", recipe, Broadcast(number, weights), part))
        wanted = site.train(workspace, Broadcast(number, weights))
        assert isinstance(reply, Update), reply
        assert_same(reply.weights, wanted.weights)
        assert (reply.site, reply.round, reply.samples, reply.steps, reply.losses) == (
            name, number, wanted.samples, wanted.steps, wanted.losses,
        )  # fmt: skip
        weights = wanted.weights
        for split in ("val", "test"):
            scored = handler.answer(request_for("evaluate", recipe, Broadcast(number, weights), part, split))
            assert scored == site.evaluate(workspace, Broadcast(number, weights), split, split == "test")
    kept = tmp_path / "home" / "runs" / "run-1" / part / "intensity.json"
    assert kept.exists() == ("intensity" in sections.get("data", {}))


def test_a_site_that_is_left_out_is_tested_with_all_images_and_does_not_train(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, protocol={"kind": "leave-one-site-out"})
    handler = make_handler(tmp_path / "home", tiny_federation)
    scored = handler.answer(request_for("evaluate", recipe, part="without-north", split="test"))
    assert isinstance(scored, Evaluation)
    assert scored.images == 5
    assert "no labelled training image" in reason_of(handler.answer(request_for("train", recipe, part="without-north")))


@pytest.mark.parametrize("number", [-2, -1, 2, 10**9])
def test_a_round_that_the_recipe_has_not_is_refused(number: int, tiny_federation: Path, tmp_path: Path) -> None:
    """After the last round a cosine schedule's first step has a rate of 0: its images would count for nothing."""
    recipe = png_recipe(tiny_federation, training={"rounds": 2, "schedule": "cosine", "optimizer": "sgd"})
    handler = make_handler(tmp_path / "home", tiny_federation)
    weights = initial_weights(recipe)
    for act, split in (("train", ""), ("evaluate", "test")):
        reply = handler.answer(request_for(act, recipe, Broadcast(number, weights), split=split))
        assert f"asks for round {number}, and the recipe has rounds 0 to 1" in reason_of(reply)
    assert isinstance(handler.answer(request_for("train", recipe, Broadcast(1, weights))), Update)


@pytest.mark.parametrize(
    ("kind", "part"),
    [("own-test", "fold-1"), ("own-test", "without-north"), ("k-fold", "all"), ("k-fold", "fold-9"),
     ("k-fold", "fold-N"), ("leave-one-site-out", "all"), ("leave-one-site-out", "fold-1")],
)  # fmt: skip
def test_a_part_that_the_protocol_does_not_have_is_refused(
    kind: str, part: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, protocol={"kind": kind, "folds": 2})
    handler = make_handler(tmp_path / "home", tiny_federation)
    assert f"has no part '{part}'" in reason_of(handler.answer(request_for("train", recipe, part=part)))


def test_a_description_counts_images_and_names_none(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation)
    reply = make_handler(tmp_path / "home", tiny_federation).answer(request_for("describe", recipe, Broadcast(-1, {})))
    assert isinstance(reply, Description)
    _, _, split = site_in_process(recipe, "north", "all", tmp_path / "plain")
    counts = {s: sum(p == s for (site, _), p in split.of.items() if site == "north") for s in ("train", "val", "test")}
    assert (reply.images, reply.knows_spacing, reply.refusal) == (counts, False, "")
    assert reply.task["classes"] == ["background", "disc"]
    assert len(reply.split_sha256) == 64
    assert from_tensors(*to_tensors(reply)) == reply
    text = json.dumps(to_tensors(reply)[1])
    assert "case0" not in text
    assert str(tiny_federation) not in text


def test_what_goes_wrong_inside_is_a_sentence_without_traceback_and_path(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    handler = make_handler(tmp_path / "home", tiny_federation, log=log)
    asked = request_for("train", png_recipe(tiny_federation))

    def fail_with(error: Exception) -> str:
        def train(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Site, "train", train)
        return reason_of(handler.answer(asked))

    assert fail_with(RuntimeError("CUDA out of memory\nmore lines")) == "RuntimeError: CUDA out of memory"
    assert fail_with(ValueError()) == "ValueError:"
    image = tiny_federation / "north" / "images" / "Mueller.png"
    for error in (FileNotFoundError(2, "No such file", str(image)), OSError(f"{tmp_path / 'home'}/x is full")):
        reason = fail_with(error)
        assert "its log says what" in reason
        assert "Mueller" not in reason
        assert str(tmp_path) not in reason
    assert any("Traceback" in text and "Mueller" in text for text in log)


@pytest.mark.parametrize("pattern", ["(Mueller)", "(case)", "(.)", "(", "no group", "(a+)+$", "(a*)*b"])
def test_a_pattern_of_the_server_is_never_tried_on_the_names_of_images(
    pattern: str, tiny_federation: Path, tmp_path: Path
) -> None:
    """Whatever it asks about names, and whether it ends or not: the answer is that of a recipe without a pattern."""
    log: list[str] = []
    asked = request_for("train", png_recipe(tiny_federation))
    wanted = make_handler(tmp_path / "plain", tiny_federation).answer(asked)
    handler = make_handler(tmp_path / "home", tiny_federation, log=log)
    spied = asked.recipe.replace("[data]", f'[data]\ncase_pattern = "{pattern}"')
    for _ in range(2):
        reply = handler.answer(replace(asked, recipe=spied))
        assert isinstance(wanted, Update)
        assert isinstance(reply, Update), reply
        assert_same(reply.weights, wanted.weights)
    assert sum("data.case_pattern of the server's recipe is not used" in line for line in log) == 1


def test_the_site_s_own_pattern_counts_and_a_wrong_one_names_no_image(tiny_federation: Path, tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    shutil.copytree(tiny_federation, folder)
    asked = request_for("describe", png_recipe(tiny_federation), Broadcast(0, {}))
    asked = replace(asked, recipe=asked.recipe.replace("[data]", '[data]\ncase_pattern = "(case0)"'))
    for number, pattern in enumerate(("(Mueller)", "(a+)+$")):
        log: list[str] = []
        handler = make_handler(tmp_path / f"home{number}", folder, log=log, case_pattern=pattern)
        reason = reason_of(handler.answer(asked))
        assert reason == "something is wrong with the site's files, so nothing leaves; its log says what"
        assert any("does not match the image 'case" in line for line in log)
    (folder / "federation.toml").write_text((folder / "federation.toml").read_text() + "\ncase_pattern = '(Schmidt)'\n")
    log = []
    reason_of(make_handler(tmp_path / "toml", folder, log=log).answer(asked))
    assert any("'(Schmidt)' does not match" in line for line in log)
    reply = make_handler(tmp_path / "own", folder, log=log, case_pattern="(.+)").answer(asked)
    assert isinstance(reply, Description), reply


def test_a_federation_that_cannot_be_read_names_no_file_to_the_server(tiny_federation: Path, tmp_path: Path) -> None:
    log: list[str] = []
    handler = make_handler(tmp_path / "home", tmp_path / "nowhere", log=log)
    reason = reason_of(handler.answer(request_for("train", png_recipe(tiny_federation))))
    assert str(tmp_path) not in reason
    assert any("nowhere" in text for text in log)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("not toml [", "the server's recipe: not a readable TOML file"),
        ("colour = 1", "the server's recipe: unknown key 'colour'"),
        ("data = 5", "data = 5 is not possible: it is a table"),
        ("network = 'unet'", "network = 'unet' is not possible: it is a table"),
        ("engine = []", "engine = [] is not possible: it is a table"),
        ("plugins = 5", "plugins"),
        ("method = 'nothing'", "nothing"),
        ("[data]\nsites = ['south', 'north']\n[training]\nlr = -1", "training.lr"),
    ],
)
def test_a_bad_recipe_gets_a_sentence(recipe: str, words: str, tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation)
    reason = reason_of(handler.answer(Request("train", "run", "all", recipe, broadcast=Broadcast(0, {}))))
    assert words in reason
    assert "Error: " not in reason


def test_the_recipe_of_the_server_decides_neither_folder_nor_cache_nor_device(
    tiny_federation: Path, tmp_path: Path
) -> None:
    server = tmp_path / "server"
    recipe = png_recipe(
        "/srv/of/the/server", data={"cache": str(server), "memory_limit_mb": 0, "sites": ["south", "north"]},
        engine={"device": "cuda:7"}, tracking={"tensorboard": True, "mlflow_uri": str(server)},
    )  # fmt: skip
    weights = initial_weights(png_recipe(tiny_federation))
    for settings in ({}, {"device": "cpu"}):
        handler = make_handler(tmp_path / f"home{len(settings)}", tiny_federation, **settings)
        reply = handler.answer(request_for("train", recipe, Broadcast(0, weights)))
        assert isinstance(reply, Update), reply
        assert any((tmp_path / f"home{len(settings)}" / "cache").iterdir())
    assert not server.exists()


def test_another_recipe_takes_the_place_of_the_last_one(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation)
    small, large = png_recipe(tiny_federation), png_recipe(tiny_federation, network={"width": 3})
    first = handler.answer(request_for("train", small))
    other = handler.answer(replace(request_for("train", large), run="run-2"))
    again = handler.answer(request_for("train", small))
    assert isinstance(first, Update)
    assert isinstance(other, Update)
    assert isinstance(again, Update)
    assert_same(first.weights, again.weights)
    assert other.bytes != first.bytes


def test_a_site_with_another_task_says_so_in_its_description(tmp_path: Path, tiny_federation: Path) -> None:
    import shutil

    folder = tmp_path / "other"
    shutil.copytree(tiny_federation, folder)
    (folder / "federation.toml").write_text('classes = ["background", "ring"]\nchannels = 1\nspatial_dims = 2\n')
    reply = make_handler(tmp_path / "home", folder).answer(request_for("describe", png_recipe(tiny_federation)))
    assert isinstance(reply, Description)
    assert reply.task["classes"] == ["background", "ring"]


def test_a_pretrained_encoder_is_the_site_s_own_file(tiny_federation: Path, tmp_path: Path) -> None:
    text = recipe_text(png_recipe(tiny_federation)).replace('name = "unet"', 'name = "pretrained"')
    assert 'name = "pretrained"' in text

    def with_weights(weights: str) -> Request:
        named = text.replace("[network]", f'[network]\nmodel = "resnet18"\nweights = "{weights}"')
        return Request("describe", "run", "all", named)

    handler = make_handler(tmp_path / "home", tiny_federation)
    assert "start the site with --encoder FILE" in reason_of(
        handler.answer(with_weights("/srv/of/the/server.safetensors"))
    )


def test_everything_that_leaves_is_in_the_audit_log(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation)
    recipe = png_recipe(tiny_federation)
    replies = [
        handler.answer(asked)
        for asked in (
            request_for("describe", recipe),
            request_for("train", recipe),
            request_for("evaluate", recipe, split="val"),
            request_for("train", recipe, part="fold-1"),
        )
    ]
    entries = list(read_audit(tmp_path / "home" / "audit.jsonl"))
    assert [one["kind"] for one in entries] == ["Description", "Update", "Evaluation", "Failure"]
    assert [one["plain"] for one in entries] == [json.loads(json.dumps(to_tensors(reply)[1])) for reply in replies]
    update = replies[1]
    assert isinstance(update, Update)
    assert {one["name"] for one in entries[1]["tensors"]} == {f"weights/{name}" for name in update.weights}
    assert {(one["run"], one["part"]) for one in entries[:3]} == {("run-1", "all")}


def test_without_an_audit_log_nothing_leaves(tiny_federation: Path, tmp_path: Path) -> None:
    log: list[str] = []
    handler = make_handler(tmp_path / "home", tiny_federation, log=log)
    (tmp_path / "home" / "audit.jsonl").mkdir(parents=True)
    for asked in (
        request_for("train", png_recipe(tiny_federation)),
        request_for("describe", png_recipe(tiny_federation)),
    ):
        assert reason_of(handler.answer(asked)) == "the site's audit log cannot be written"
    blobs, about = handler.serve({}, {"act": "delete"})
    assert (blobs, about["reason"]) == ({}, "the site's audit log cannot be written")
    assert "receipt" not in about
    assert any("so nothing leaves" in text for text in log)


def test_a_restarted_site_goes_on_with_its_memory_and_its_log(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, "fedbn")
    weights = initial_weights(recipe)

    def rounds(home: Path, restart: bool) -> Update:
        handler = make_handler(home, tiny_federation)
        first = handler.answer(request_for("train", recipe, Broadcast(0, weights)))
        assert isinstance(first, Update)
        handler = make_handler(home, tiny_federation) if restart else handler
        second = handler.answer(request_for("train", recipe, Broadcast(1, first.weights)))
        assert isinstance(second, Update)
        return second

    assert_same(rounds(tmp_path / "a", True).weights, rounds(tmp_path / "b", False).weights)
    assert [one["round"] for one in read_audit(tmp_path / "a" / "audit.jsonl")] == [0, 1]


EMPTY = {"kind": "Broadcast", "round": 0}


def served(handler: RequestHandler, blobs: dict[str, bytes], about: Any) -> Failure:
    given, plain = handler.serve(blobs, about)
    take_receipt(plain)
    reply = from_tensors(decode(given), plain)
    assert isinstance(reply, Failure)
    return reply


@pytest.mark.parametrize(
    ("blobs", "about"),
    [
        ({}, {}),
        ({}, {"act": "train", "run": "../x", "part": "all", "recipe": "", "broadcast": EMPTY}),
        ({}, {"act": "train", "run": "x", "part": "all", "recipe": "", "broadcast": []}),
        ({"weights": b"garbage"}, {}),
        (encode({"odd/x": torch.zeros(1)}), {"act": "train", "broadcast": EMPTY}),
    ],
)  # fmt: skip
def test_what_is_no_request_gets_a_failure_that_is_written_down(
    blobs: dict[str, bytes], about: Any, tiny_federation: Path, tmp_path: Path
) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation)
    reply = served(handler, blobs, about)
    assert (reply.site, reply.round, reply.details) == ("north", -1, "")
    (entry,) = read_audit(tmp_path / "home" / "audit.jsonl")
    assert (entry["kind"], entry["plain"]["reason"]) == ("Failure", reply.reason)


def test_served_bytes_are_the_answer(tiny_federation: Path, tmp_path: Path) -> None:
    asked = request_for("train", png_recipe(tiny_federation))
    tensors, about = asked.to_tensors()
    blobs, plain = make_handler(tmp_path / "a", tiny_federation).serve(encode(tensors), about)
    receipt = take_receipt(plain)
    assert receipt is not None
    assert (receipt.lines, receipt.sha256) == (1, end_of_chain(tmp_path / "a" / "audit.jsonl"))
    back = from_tensors(decode(blobs), plain)
    wanted = make_handler(tmp_path / "b", tiny_federation).answer(asked)
    assert isinstance(back, Update)
    assert isinstance(wanted, Update)
    assert_same(back.weights, wanted.weights)


def test_images_that_change_within_a_run_stop_the_site_and_no_other_run(tiny_federation: Path, tmp_path: Path) -> None:
    """What trained in one round could else be tested at the end of the same run."""
    folder = tmp_path / "federation"
    shutil.copytree(tiny_federation, folder)
    recipe = png_recipe(folder)
    plan = plan_run(recipe)
    federation, resolved = plan.federation, plan.recipe
    broadcast = Broadcast(0, dict(build_workspace(resolved, federation.task).initial_exchanged))
    handler = make_handler(tmp_path / "home", folder, device="cpu")
    assert isinstance(handler.answer(request_for("train", recipe, broadcast)), Update)
    image = next((folder / "north" / "images").iterdir())
    for kind in ("images", "labels"):
        shutil.copy(folder / "north" / kind / image.name, folder / "north" / kind / f"added-later{image.suffix}")
    again = make_handler(tmp_path / "home", folder, device="cpu")
    reply = again.answer(request_for("train", recipe, replace(broadcast, round=1)))
    assert isinstance(reply, Failure)
    assert "have changed since this run began" in reply.reason
    other = replace(request_for("train", recipe, broadcast), run="run-2")
    assert isinstance(again.answer(other), Update)


def test_a_failed_device_ends_the_worker_and_an_ordinary_fault_does_not(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = png_recipe(tiny_federation)
    for text, broken in (("CUDA error: device-side assert triggered", True), ("shapes do not fit", False)):
        handler = make_handler(tmp_path / f"home-{broken}", tiny_federation, device="cpu")

        def fail(*_: Any, text: str = text) -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(handler, "_opened", fail)
        assert isinstance(handler.answer(request_for("describe", recipe, Broadcast(-1, {}))), Failure)
        assert handler.device_failed == broken


def test_a_site_under_another_name_than_its_key_does_nothing_and_says_which(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe, log = png_recipe(tiny_federation), []
    handler = make_handler(tmp_path / "home", tiny_federation, log=log, device="cpu")
    assert isinstance(handler.answer(replace(request_for("train", recipe), site="north")), Update)
    reply = handler.answer(replace(request_for("train", recipe), site="west"))
    assert isinstance(reply, Failure)
    assert "start it with --name west" in reply.reason
    assert "start it with --name west" in log[-1]


def test_the_head_of_the_log_is_signed_with_the_site_s_key(tiny_federation: Path, tmp_path: Path) -> None:
    key, public = make_site_key(tmp_path / "keys", "north")
    handler = make_handler(tmp_path / "home", tiny_federation, key=str(key))
    handler.serve({}, {"act": "delete"})
    head = read_head(tmp_path / "home" / "audit.jsonl")
    assert head is not None
    assert head.public is not None
    assert head.signature is not None
    assert public.read_text().startswith(head.public)
    assert is_signature(head.public, head.signed_bytes(), head.signature)
    broken = make_handler(tmp_path / "other", tiny_federation, key=str(tmp_path / "none.key"))
    _, about = broken.serve({}, {"act": "delete"})
    assert about["reason"] == "the site's audit log cannot be written", "what cannot be signed does not leave"


def test_an_update_rests_on_enough_different_images_whatever_the_seed_draws(tmp_path: Path) -> None:
    """Five steps of one image each may draw the same image again: the server knows the order of every seed."""
    federation = write_tiny_federation(tmp_path / "federation", {"north": 12})
    handler = make_handler(tmp_path / "home", federation, policy="minimum_images = 5\n", device="cpu")
    few = enough = 0
    training = {"local_epochs": 5, "steps_per_epoch": 1, "batch_size": 1}
    for seed in range(20):
        recipe = png_recipe(federation, seed=seed, data={"split": [1.0, 0.0, 0.0]}, training=training)
        reply = handler.answer(replace(request_for("train", recipe), run=f"run-{seed}"))
        few += isinstance(reply, Failure) and "the update rests on" in reply.reason
        enough += not isinstance(reply, Failure) or "differ in" in reply.reason
    assert few >= 5
    assert enough >= 3


def test_what_a_server_writes_does_not_fill_the_log_of_a_site(tiny_federation: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    handler = make_handler(tmp_path / "home", tiny_federation, log=logged)
    for about in ({"act": "x" * 10**6}, {"broadcast": {"kind": "y" * 10**6}}, {"act": "train", "run": "z" * 10**6}):
        _, answer = handler.serve({}, about)
        assert len(answer["reason"]) <= 500
    handler.serve({"g" * 10**6: b"x"}, {})
    assert (tmp_path / "home" / "audit.jsonl").stat().st_size < 10_000
    assert all(len(line) < 2000 for line in logged)
