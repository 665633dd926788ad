from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flower_support import OPEN, make_desk, png_recipe
from polyclinic.data.splits import Split
from polyclinic.deploy.site.request_handler import RequestHandler
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.exchange.audit import read_audit
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Failure, Update, from_tensors, to_tensors
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.federation.site import Site
from polyclinic.federation.store import SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.plan import open_for, prepare_items, site_data
from support import assert_same


def site_of(recipe: Recipe, name: str, part: str, folder: Path) -> tuple[Site, Workspace, Split]:
    """The same site in one process, from a folder that holds all sites."""
    federation, resolved = open_for(recipe)
    resolved = resolved.model_copy(update={"evaluation": recipe.evaluation})
    workspace = build_workspace(resolved, federation.task)
    (own,) = [p for p in protocol_parts(federation, resolved, workspace.method.all_labels) if p.name == part]
    images = prepare_items(federation, resolved, own.items(federation, name))
    return Site(site_data(name, images, own), SiteStore(folder)), workspace, own.split


def request(
    act: Any, recipe: Recipe, broadcast: Broadcast | None = None, part: str = "all", split: str = ""
) -> Request:
    broadcast = broadcast or Broadcast(0, build_workspace_for(recipe))
    return Request(act, "run-1", part, recipe_text(recipe), split, split == "test", broadcast)


def build_workspace_for(recipe: Recipe) -> dict[str, torch.Tensor]:
    federation, resolved = open_for(recipe)
    return dict(build_workspace(resolved, federation.task).initial_exchanged)


def sentence(reply: object) -> str:
    assert isinstance(reply, Failure), reply
    assert reply.details == ""
    return reply.reason


@pytest.mark.parametrize(
    ("method", "name", "sections", "part"),
    [
        ("fedavg", "north", {}, "all"),
        ("fedbn", "south", {"data": {"labelled": 2}}, "all"),
        ("fedavg", "south", {"protocol": {"kind": "k-fold", "folds": 2}}, "fold-2"),
        ("fedavg", "north", {"protocol": {"kind": "leave-one-site-out"}}, "without-south"),
    ],
)
def test_a_desk_does_what_the_site_in_one_process_does(
    method: str, name: str, sections: dict[str, Any], part: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, method, **sections)
    site, workspace, _ = site_of(recipe, name, part, tmp_path / "plain")
    desk = make_desk(tmp_path / "home", tiny_federation, name, device="cpu")
    weights = dict(workspace.initial_exchanged)
    for number in range(2):
        reply = desk.answer(request("train", recipe, Broadcast(number, weights), part))
        wanted = site.train(workspace, Broadcast(number, weights))
        assert isinstance(reply, Update), reply
        assert_same(reply.weights, wanted.weights)
        assert (reply.site, reply.round, reply.samples, reply.steps, reply.losses) == (
            name, number, wanted.samples, wanted.steps, wanted.losses,
        )  # fmt: skip
        weights = wanted.weights
        for split in ("val", "test"):
            scored = desk.answer(request("evaluate", recipe, Broadcast(number, weights), part, split))
            assert scored == site.evaluate(workspace, Broadcast(number, weights), split, split == "test")


def test_a_site_that_is_left_out_is_tested_with_all_images_and_does_not_train(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, protocol={"kind": "leave-one-site-out"})
    desk = make_desk(tmp_path / "home", tiny_federation)
    scored = desk.answer(request("evaluate", recipe, part="without-north", split="test"))
    assert isinstance(scored, Evaluation)
    assert scored.images == 5
    assert "no labelled training image" in sentence(desk.answer(request("train", recipe, part="without-north")))


@pytest.mark.parametrize(
    ("kind", "part"),
    [("own-test", "fold-1"), ("own-test", "without-north"), ("k-fold", "all"), ("k-fold", "fold-9"),
     ("k-fold", "fold-N"), ("leave-one-site-out", "all"), ("leave-one-site-out", "fold-1")],
)  # fmt: skip
def test_a_part_that_the_protocol_does_not_have_is_refused(
    kind: str, part: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, protocol={"kind": kind, "folds": 2})
    desk = make_desk(tmp_path / "home", tiny_federation)
    assert f"has no part '{part}'" in sentence(desk.answer(request("train", recipe, part=part)))


def test_a_description_counts_images_and_names_none(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation)
    reply = make_desk(tmp_path / "home", tiny_federation).answer(request("describe", recipe, Broadcast(-1, {})))
    assert isinstance(reply, Description)
    _, _, split = site_of(recipe, "north", "all", tmp_path / "plain")
    counts = {s: sum(p == s for (site, _), p in split.of.items() if site == "north") for s in ("train", "val", "test")}
    assert (reply.images, reply.knows_spacing, reply.refusal) == (counts, False, "")
    assert reply.task["classes"] == ["background", "disc"]
    assert len(reply.split_sha256) == 64
    assert from_tensors(*to_tensors(reply)) == reply
    text = json.dumps(to_tensors(reply)[1])
    assert "case0" not in text
    assert str(tiny_federation) not in text


@pytest.mark.parametrize(
    ("method", "policy", "words"),
    [
        ("fedavg", 'methods = ["fedprox"]', "refused: the site's policy does not allow the method fedavg"),
        ("fedprox", 'methods = ["fedavg+*", "fedprox(mu=1)"]', "refused: the site's policy does not allow"),
        ("fedbcs", 'shared = ["other/*"]', "refused: the site's policy does not let cdpa/"),
        ("fedavg", "require_privacy = true", "refused: the site's policy asks for the component privacy"),
        ("fedavg", "max_mb_per_round = 0.0001", "refused: 0.0 MB would leave this round"),
    ],
)
def test_what_the_policy_forbids_neither_trains_nor_scores(
    method: str, policy: str, words: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, method)
    desk = make_desk(tmp_path / "home", tiny_federation, policy=f"minimum_images = 1\n{policy}")
    weights = Broadcast(0, {})
    assert sentence(desk.answer(request("train", recipe, weights))).startswith(words)
    assert sentence(desk.answer(request("evaluate", recipe, weights, split="test"))).startswith(words)
    described = desk.answer(request("describe", recipe, weights))
    assert isinstance(described, Description)
    assert words.removeprefix("refused: ") in described.refusal
    assert not (tmp_path / "home" / "runs").exists()


def test_an_update_of_too_few_images_does_not_leave_and_scores_are_held_back(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation)
    desk = make_desk(tmp_path / "home", tiny_federation, policy="minimum_images = 4")
    words = "refused: the update rests on 3 images, the site's policy asks for 4"
    assert sentence(desk.answer(request("train", recipe))) == words
    assert not list((tmp_path / "home" / "runs").rglob("*.safetensors"))
    for split in ("val", "test"):
        scored = desk.answer(request("evaluate", recipe, split=split))
        assert isinstance(scored, Evaluation)
        assert (scored.images, scored.rows, scored.stats) == (0, [], {})
        assert scored.note == "scores of 1 images are held back, the policy asks for 4"


@pytest.mark.parametrize(("steps", "batch", "leaves"), [(1, 1, False), (1, 2, False), (3, 1, True), (None, 1, True)])
def test_the_server_cannot_ask_for_the_gradient_of_a_single_image(
    steps: int | None, batch: int, leaves: bool, tiny_federation: Path, tmp_path: Path
) -> None:
    """The site has three training images; what counts is how many of them a round looks at."""
    training = {"batch_size": batch, "local_epochs": 1, **({"steps_per_epoch": steps} if steps else {})}
    recipe = png_recipe(tiny_federation, training=training, network={"norm": "instance"})
    reply = make_desk(tmp_path / "home", tiny_federation, policy="minimum_images = 3").answer(request("train", recipe))
    if leaves:
        assert isinstance(reply, Update)
    else:
        assert sentence(reply).startswith(f"refused: the update rests on {batch} image")


def test_slices_of_one_volume_are_one_image(tmp_path: Path) -> None:
    import nibabel as nib
    import numpy as np

    for number in range(5):
        for kind, high in (("images", 200), ("labels", 2)):
            folder = tmp_path / "federation" / "north" / kind
            folder.mkdir(parents=True, exist_ok=True)
            voxels = np.random.default_rng(number).integers(0, high, (16, 16, 6)).astype(np.uint8)
            nib.save(nib.Nifti1Image(voxels, np.eye(4)), folder / f"volume{number}.nii.gz")  # type: ignore[no-untyped-call,attr-defined]
    (tmp_path / "federation" / "federation.toml").write_text(
        'classes = ["background", "disc"]\nchannels = 1\nspatial_dims = 2\n'
    )
    recipe = png_recipe(tmp_path / "federation")
    desk = make_desk(tmp_path / "home", tmp_path / "federation", policy="minimum_images = 4")
    assert "refused: the update rests on 3 images" in sentence(desk.answer(request("train", recipe)))
    scored = desk.answer(request("evaluate", recipe, split="val"))
    assert isinstance(scored, Evaluation)
    assert (scored.images, scored.note) == (0, "scores of 1 cases are held back, the policy asks for 4")


def test_prototypes_of_a_rare_class_do_not_leave(tiny_federation: Path, tmp_path: Path) -> None:
    """A federation whose third class is in one training image alone."""
    import shutil

    import numpy as np
    from PIL import Image

    folder = tmp_path / "federation"
    shutil.copytree(tiny_federation, folder)
    (folder / "federation.toml").write_text(
        'classes = ["background", "disc", "core"]\nchannels = 1\nspatial_dims = 2\n'
    )
    recipe = png_recipe(folder, "fedbcs")
    _, _, split = site_of(recipe, "north", "all", tmp_path / "plain")
    rare = next(name for (site, name), part in split.of.items() if (site, part) == ("north", "train"))
    (path,) = (folder / "north" / "labels").glob(f"{Path(rare).stem}*")
    label = np.array(Image.open(path))
    label[:2, :2] = 2
    Image.fromarray(label).save(path)
    desk = make_desk(tmp_path / "home", folder, policy="minimum_images = 2")
    assert "refused: a prototype of class 'core' would rest on 1 image" in sentence(
        desk.answer(request("train", recipe))
    )
    plain = png_recipe(folder, "fedavg")
    assert isinstance(desk.answer(request("train", plain)), Update)


def test_the_policy_is_read_anew_for_every_request(tiny_federation: Path, tmp_path: Path) -> None:
    desk = make_desk(tmp_path / "home", tiny_federation)
    policy, asked = Path(str(desk.settings.policy)), request("train", png_recipe(tiny_federation))
    assert isinstance(desk.answer(asked), Update)
    policy.write_text(OPEN + 'methods = ["fedprox"]')
    assert "does not allow the method" in sentence(desk.answer(asked))
    policy.write_text(OPEN)
    assert isinstance(desk.answer(asked), Update)
    scores = request("evaluate", png_recipe(tiny_federation), split="test")
    assert desk.answer(scores).rows  # type: ignore[union-attr]
    policy.write_text("minimum_images = 1")
    assert not desk.answer(scores).rows  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["methods = [", "colour = 1", "minimum_images = 0", None])
def test_a_broken_policy_lets_nothing_leave(text: str | None, tiny_federation: Path, tmp_path: Path) -> None:
    log: list[str] = []
    desk = make_desk(tmp_path / "home", tiny_federation, log=log)
    policy, recipe = Path(str(desk.settings.policy)), png_recipe(tiny_federation)
    assert isinstance(desk.answer(request("train", recipe)), Update)
    policy.write_text(text) if text is not None else policy.unlink()
    for asked in (request("train", recipe), request("evaluate", recipe, split="test"), request("describe", recipe)):
        reason = sentence(desk.answer(asked))
        assert reason == "something is wrong with the site's policy, so nothing leaves; its log says what"
    assert any(str(policy) in line for line in log)


def test_a_plugin_is_loaded_only_if_the_policy_names_it(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_plugin_of_ours.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = png_recipe(tiny_federation, plugins=["a_plugin_of_ours"])
    desk = make_desk(tmp_path / "home", tiny_federation, policy=OPEN)
    policy, asked = Path(str(desk.settings.policy)), request("train", recipe)
    assert sentence(desk.answer(asked)).startswith("refused: the site's policy does not allow the plugin")
    assert "a_plugin_of_ours" not in sys.modules
    policy.write_text(OPEN + 'plugins = ["a_plugin_of_ours"]')
    assert isinstance(desk.answer(asked), Update)
    policy.write_text(OPEN)  # taken back while the recipe is open
    assert sentence(desk.answer(asked)).startswith("refused: the site's policy does not allow the plugin")
    described = desk.answer(request("describe", recipe))
    assert isinstance(described, Description)
    assert "does not allow the plugin" in described.refusal
    monkeypatch.delitem(sys.modules, "a_plugin_of_ours")


@pytest.mark.parametrize(("kind", "leaves"), [("no", "stats"), ("numbered", "rows"), ("named", "rows")])
def test_no_name_of_a_case_leaves_unless_the_policy_says_named(
    kind: str, leaves: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, protocol={"kind": "leave-one-site-out"})
    desk = make_desk(tmp_path / "home", tiny_federation, policy=f'minimum_images = 2\nper_case_metrics = "{kind}"')
    reply = desk.answer(request("evaluate", recipe, part="without-north", split="test"))
    assert isinstance(reply, Evaluation)
    assert bool(reply.rows) == (leaves == "rows")
    assert bool(reply.stats) == (leaves == "stats")
    text = json.dumps(to_tensors(reply)[1]) + (tmp_path / "home" / "audit.jsonl").read_text()
    named = [path.stem for path in (tiny_federation / "north" / "images").iterdir() if path.stem in text]
    assert len(named) == (5 if kind == "named" else 0)
    if leaves == "stats":
        assert reply.stats["dice"]["count"] == 5


def test_what_goes_wrong_inside_is_a_sentence_without_traceback_and_path(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    desk = make_desk(tmp_path / "home", tiny_federation, log=log)
    asked = request("train", png_recipe(tiny_federation))

    def fail_with(error: Exception) -> str:
        def train(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Site, "train", train)
        return sentence(desk.answer(asked))

    assert fail_with(RuntimeError("CUDA out of memory\nmore lines")) == "RuntimeError: CUDA out of memory"
    assert fail_with(ValueError()) == "ValueError: "
    image = tiny_federation / "north" / "images" / "Mueller.png"
    for error in (FileNotFoundError(2, "No such file", str(image)), OSError(f"{tmp_path / 'home'}/x is full")):
        reason = fail_with(error)
        assert "its log says what" in reason
        assert "Mueller" not in reason
        assert str(tmp_path) not in reason
    assert any("Traceback" in text and "Mueller" in text for text in log)


def test_a_pattern_of_the_server_does_not_make_the_site_name_an_image(tiny_federation: Path, tmp_path: Path) -> None:
    log: list[str] = []
    desk = make_desk(tmp_path / "home", tiny_federation, log=log)
    names = [path.stem for path in (tiny_federation / "north" / "images").iterdir()]
    for act in ("describe", "train"):
        asked = request(act, png_recipe(tiny_federation), Broadcast(0, {}))
        spied = replace(asked, recipe=asked.recipe.replace("[data]", '[data]\ncase_pattern = "(Mueller)"'))
        reason = sentence(desk.answer(spied))
        assert reason == "something is wrong with the site's files, so nothing leaves; its log says what"
    assert any(name in text for name in names for text in log)


def test_epsilon_counts_all_parts_of_a_run_and_repeated_rounds_once(tiny_federation: Path, tmp_path: Path) -> None:
    """Noise 1 spends 4.9 in a release and 7.7 in two; the folds of a run are trainings on the same images."""
    folds = {"kind": "k-fold", "folds": 2}
    recipe = png_recipe(
        tiny_federation, "fedavg+privacy(noise=1)", training={"rounds": 1}, protocol=folds, network={"norm": "instance"}
    )
    desk = make_desk(tmp_path / "home", tiny_federation, policy="minimum_images = 1\nmax_epsilon = 8")
    parts = ("fold-1", "fold-2", "fold-1", "fold-2")  # the last two are repeated after a kill
    first = [desk.answer(request("train", recipe, part=part)) for part in parts]
    assert all(isinstance(reply, Update) for reply in first), first
    Path(str(desk.settings.policy)).write_text("minimum_images = 1\nmax_epsilon = 5")
    for part in ("fold-1", "fold-2"):
        assert "2 updates would spend" in sentence(desk.answer(request("train", recipe, part=part)))
    described = desk.answer(request("describe", recipe, part="fold-1"))
    assert isinstance(described, Description)
    assert "2 updates would spend" in described.refusal


def test_a_federation_that_cannot_be_read_names_no_file_to_the_server(tiny_federation: Path, tmp_path: Path) -> None:
    log: list[str] = []
    desk = make_desk(tmp_path / "home", tmp_path / "nowhere", log=log)
    reason = sentence(desk.answer(request("train", png_recipe(tiny_federation))))
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
    desk = make_desk(tmp_path / "home", tiny_federation)
    reason = sentence(desk.answer(Request("train", "run", "all", recipe, broadcast=Broadcast(0, {}))))
    assert words in reason
    assert "Error: " not in reason


def test_weights_of_another_model_are_a_failure_and_no_crash(tiny_federation: Path, tmp_path: Path) -> None:
    desk = make_desk(tmp_path / "home", tiny_federation)
    recipe = png_recipe(tiny_federation)
    weights = build_workspace_for(recipe)
    wrong = {name: torch.zeros(1, 2, 3) for name in weights}
    for broken in ({}, wrong, {"evil": torch.zeros(1)}, {**weights, "evil": torch.zeros(1)}):
        sentence(desk.answer(request("train", recipe, Broadcast(0, broken))))
        sentence(desk.answer(request("evaluate", recipe, Broadcast(0, broken), split="test")))
    assert isinstance(desk.answer(request("train", recipe, Broadcast(0, weights))), Update)


def test_the_recipe_of_the_server_decides_neither_folder_nor_cache_nor_device(
    tiny_federation: Path, tmp_path: Path
) -> None:
    server = tmp_path / "server"
    recipe = png_recipe(
        "/srv/of/the/server", data={"cache": str(server), "memory_limit_mb": 0, "sites": ["south", "north"]},
        engine={"device": "cuda:7"}, tracking={"tensorboard": True, "mlflow_uri": str(server)},
    )  # fmt: skip
    weights = build_workspace_for(png_recipe(tiny_federation))
    for settings in ({}, {"device": "cpu"}):
        desk = make_desk(tmp_path / f"home{len(settings)}", tiny_federation, **settings)
        reply = desk.answer(request("train", recipe, Broadcast(0, weights)))
        assert isinstance(reply, Update), reply
        assert any((tmp_path / f"home{len(settings)}" / "cache").iterdir())
    assert not server.exists()


def test_another_recipe_takes_the_place_of_the_last_one(tiny_federation: Path, tmp_path: Path) -> None:
    desk = make_desk(tmp_path / "home", tiny_federation)
    small, large = png_recipe(tiny_federation), png_recipe(tiny_federation, network={"width": 3})
    first = desk.answer(request("train", small))
    other = desk.answer(replace(request("train", large), run="run-2"))
    again = desk.answer(request("train", small))
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
    reply = make_desk(tmp_path / "home", folder).answer(request("describe", png_recipe(tiny_federation)))
    assert isinstance(reply, Description)
    assert reply.task["classes"] == ["background", "ring"]


def test_a_pretrained_encoder_is_the_site_s_own_file(tiny_federation: Path, tmp_path: Path) -> None:
    text = recipe_text(png_recipe(tiny_federation)).replace('name = "unet"', 'name = "pretrained"')
    assert 'name = "pretrained"' in text

    def with_weights(weights: str) -> Request:
        named = text.replace("[network]", f'[network]\nmodel = "resnet18"\nweights = "{weights}"')
        return Request("describe", "run", "all", named)

    desk = make_desk(tmp_path / "home", tiny_federation)
    assert "start the site with --encoder FILE" in sentence(desk.answer(with_weights("/srv/of/the/server.safetensors")))
    save_file({"a": torch.zeros(1)}, tmp_path / "own.safetensors")
    own = make_desk(tmp_path / "own", tiny_federation, encoder=str(tmp_path / "own.safetensors"))
    assert own._at_home({"network": {"weights": "/srv/x"}})["network"]["weights"] == str(tmp_path / "own.safetensors")
    assert own._at_home({"network": {"weights": "random"}})["network"]["weights"] == "random"
    assert "weights" not in own._at_home({"network": {}})["network"]


def test_everything_that_leaves_is_in_the_audit_log(tiny_federation: Path, tmp_path: Path) -> None:
    desk = make_desk(tmp_path / "home", tiny_federation)
    recipe = png_recipe(tiny_federation)
    replies = [
        desk.answer(asked)
        for asked in (
            request("describe", recipe),
            request("train", recipe),
            request("evaluate", recipe, split="val"),
            request("train", recipe, part="fold-1"),
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
    desk = make_desk(tmp_path / "home", tiny_federation, log=log)
    (tmp_path / "home" / "audit.jsonl").mkdir(parents=True)
    for asked in (request("train", png_recipe(tiny_federation)), request("describe", png_recipe(tiny_federation))):
        assert sentence(desk.answer(asked)) == "the site's audit log cannot be written"
    blobs, about = desk.serve({}, {"act": "delete"})
    assert (blobs, about["reason"]) == ({}, "the site's audit log cannot be written")
    assert any("so nothing leaves" in text for text in log)


def test_a_restarted_site_goes_on_with_its_memory_and_its_log(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, "fedbn")
    weights = build_workspace_for(recipe)

    def rounds(home: Path, restart: bool) -> Update:
        desk = make_desk(home, tiny_federation)
        first = desk.answer(request("train", recipe, Broadcast(0, weights)))
        assert isinstance(first, Update)
        desk = make_desk(home, tiny_federation) if restart else desk
        second = desk.answer(request("train", recipe, Broadcast(1, first.weights)))
        assert isinstance(second, Update)
        return second

    assert_same(rounds(tmp_path / "a", True).weights, rounds(tmp_path / "b", False).weights)
    assert [one["round"] for one in read_audit(tmp_path / "a" / "audit.jsonl")] == [0, 1]


EMPTY = {"kind": "Broadcast", "round": 0}


def served(desk: RequestHandler, blobs: dict[str, bytes], about: Any) -> Failure:
    given, plain = desk.serve(blobs, about)
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
    desk = make_desk(tmp_path / "home", tiny_federation)
    reply = served(desk, blobs, about)
    assert (reply.site, reply.round, reply.details) == ("north", -1, "")
    (entry,) = read_audit(tmp_path / "home" / "audit.jsonl")
    assert (entry["kind"], entry["plain"]["reason"]) == ("Failure", reply.reason)


def test_served_bytes_are_the_answer(tiny_federation: Path, tmp_path: Path) -> None:
    asked = request("train", png_recipe(tiny_federation))
    tensors, about = asked.to_tensors()
    blobs, plain = make_desk(tmp_path / "a", tiny_federation).serve(encode(tensors), about)
    back = from_tensors(decode(blobs), plain)
    wanted = make_desk(tmp_path / "b", tiny_federation).answer(asked)
    assert isinstance(back, Update)
    assert isinstance(wanted, Update)
    assert_same(back.weights, wanted.weights)


def test_images_that_change_within_a_run_stop_the_site_and_no_other_run(tiny_federation: Path, tmp_path: Path) -> None:
    """What trained in one round could else be tested at the end of the same run."""
    own = tmp_path / "federation"
    shutil.copytree(tiny_federation, own)
    recipe = png_recipe(own)
    federation, resolved = open_for(recipe)
    broadcast = Broadcast(0, dict(build_workspace(resolved, federation.task).initial_exchanged))
    desk = make_desk(tmp_path / "home", own, device="cpu")
    assert isinstance(desk.answer(request("train", recipe, broadcast)), Update)
    image = next((own / "north" / "images").iterdir())
    for kind in ("images", "labels"):
        shutil.copy(own / "north" / kind / image.name, own / "north" / kind / f"added-later{image.suffix}")
    again = make_desk(tmp_path / "home", own, device="cpu")
    reply = again.answer(request("train", recipe, replace(broadcast, round=1)))
    assert isinstance(reply, Failure)
    assert "have changed since this run began" in reply.reason
    other = replace(request("train", recipe, broadcast), run="run-2")
    assert isinstance(again.answer(other), Update)


def test_a_failed_device_ends_the_worker_and_an_ordinary_fault_does_not(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = png_recipe(tiny_federation)
    for text, broken in (("CUDA error: device-side assert triggered", True), ("shapes do not fit", False)):
        desk = make_desk(tmp_path / f"home-{broken}", tiny_federation, device="cpu")

        def fail(*_: Any, text: str = text) -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(desk, "_opened", fail)
        assert isinstance(desk.answer(request("describe", recipe, Broadcast(-1, {}))), Failure)
        assert desk.broken == broken


def test_a_site_under_another_name_than_its_key_does_nothing_and_says_which(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe, log = png_recipe(tiny_federation), []
    desk = make_desk(tmp_path / "home", tiny_federation, log=log, device="cpu")
    assert isinstance(desk.answer(replace(request("train", recipe), site="north")), Update)
    reply = desk.answer(replace(request("train", recipe), site="west"))
    assert isinstance(reply, Failure)
    assert "start it with --name west" in reply.reason
    assert "start it with --name west" in log[-1]
