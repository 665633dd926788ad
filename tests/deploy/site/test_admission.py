"""The checks of a site, asked through its request handler: policy, numbers of images, model."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flower_support import OPEN, initial_weights, make_handler, png_recipe, reason_of, request_for, site_in_process
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.admission import refusal_of_pictures, require_model
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Update, to_tensors
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe, tiny_task


@pytest.mark.parametrize(
    ("method", "policy", "words"),
    [
        ("fedavg", 'methods = ["fedprox"]', "refused: the site's policy does not allow the method fedavg"),
        ("fedprox", 'methods = ["fedavg+*", "fedprox(mu=1)"]', "refused: the site's policy does not allow"),
        ("fedbcs", 'shared = ["other/*"]', "refused: the site's policy does not let cdpa/"),
        (
            "fedavg",
            "require_privacy = true\nmax_epsilon = 9",
            "refused: the site's policy asks for the component privacy",
        ),
        ("fedavg", "max_mb_per_round = 0.0001", "refused: 0.0 MB would leave this round"),
    ],
)
def test_what_the_policy_forbids_neither_trains_nor_scores(
    method: str, policy: str, words: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, method)
    handler = make_handler(tmp_path / "home", tiny_federation, policy=f"minimum_images = 1\n{policy}")
    weights = Broadcast(0, {})
    assert reason_of(handler.answer(request_for("train", recipe, weights))).startswith(words)
    assert reason_of(handler.answer(request_for("evaluate", recipe, weights, split="test"))).startswith(words)
    described = handler.answer(request_for("describe", recipe, weights))
    # What needs no data to be refused is refused before the site looks at any.
    said = described.refusal if isinstance(described, Description) else reason_of(described)
    assert words.removeprefix("refused: ") in said
    assert not (tmp_path / "home" / "runs").exists()


def test_an_update_of_too_few_images_does_not_leave_and_scores_are_held_back(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation)
    handler = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 4")
    words = "refused: the update rests on 3 images, the site's policy asks for 4"
    assert reason_of(handler.answer(request_for("train", recipe))) == words
    assert not list((tmp_path / "home" / "runs").rglob("*.safetensors"))
    for split in ("val", "test"):
        scored = handler.answer(request_for("evaluate", recipe, split=split))
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
    reply = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 3").answer(
        request_for("train", recipe)
    )
    if leaves:
        assert isinstance(reply, Update)
    else:
        assert reason_of(reply).startswith(f"refused: the update rests on {batch} image")


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
    handler = make_handler(tmp_path / "home", tmp_path / "federation", policy="minimum_images = 4")
    assert "refused: the update rests on 3 images" in reason_of(handler.answer(request_for("train", recipe)))
    scored = handler.answer(request_for("evaluate", recipe, split="val"))
    assert isinstance(scored, Evaluation)
    assert (scored.images, scored.note) == (0, "scores of 1 cases are held back, the policy asks for 4")


def test_prototypes_of_a_rare_class_do_not_leave(tiny_federation: Path, tmp_path: Path) -> None:
    """A federation whose third class is in one training image alone."""

    import numpy as np
    from PIL import Image

    folder = tmp_path / "federation"
    shutil.copytree(tiny_federation, folder)
    (folder / "federation.toml").write_text(
        'classes = ["background", "disc", "core"]\nchannels = 1\nspatial_dims = 2\n'
    )
    recipe = png_recipe(folder, "fedbcs")
    _, _, split = site_in_process(recipe, "north", "all", tmp_path / "plain")
    rare = next(name for (site, name), part in split.of.items() if (site, part) == ("north", "train"))
    (path,) = (folder / "north" / "labels").glob(f"{Path(rare).stem}*")
    label = np.array(Image.open(path))
    label[:2, :2] = 2
    Image.fromarray(label).save(path)
    handler = make_handler(tmp_path / "home", folder, policy="minimum_images = 2")
    assert "refused: a prototype of class 'core' would rest on 1 image" in reason_of(
        handler.answer(request_for("train", recipe))
    )
    plain = png_recipe(folder, "fedavg")
    assert isinstance(handler.answer(replace(request_for("train", plain), run="run-2")), Update)


def test_the_policy_is_read_anew_for_every_request(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation)
    policy, asked = Path(str(handler.settings.policy)), request_for("train", png_recipe(tiny_federation))
    assert isinstance(handler.answer(asked), Update)
    policy.write_text(OPEN + 'methods = ["fedprox"]')
    assert "does not allow the method" in reason_of(handler.answer(asked))
    policy.write_text(OPEN)
    assert isinstance(handler.answer(asked), Update)
    scores = request_for("evaluate", png_recipe(tiny_federation), split="test")
    assert handler.answer(scores).rows  # type: ignore[union-attr]
    policy.write_text("minimum_images = 1")
    assert not handler.answer(scores).rows  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["methods = [", "colour = 1", "minimum_images = 0", "require_privacy = true", None])
def test_a_broken_policy_lets_nothing_leave(text: str | None, tiny_federation: Path, tmp_path: Path) -> None:
    log: list[str] = []
    handler = make_handler(tmp_path / "home", tiny_federation, log=log)
    policy, recipe = Path(str(handler.settings.policy)), png_recipe(tiny_federation)
    assert isinstance(handler.answer(request_for("train", recipe)), Update)
    policy.write_text(text) if text is not None else policy.unlink()
    for asked in (
        request_for("train", recipe),
        request_for("evaluate", recipe, split="test"),
        request_for("describe", recipe),
    ):
        reason = reason_of(handler.answer(asked))
        assert reason == "something is wrong with the site's policy, so nothing leaves; its log says what"
    assert any(str(policy) in line for line in log)


def test_a_plugin_is_loaded_only_if_the_policy_names_it(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_plugin_of_ours.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = png_recipe(tiny_federation, plugins=["a_plugin_of_ours"])
    handler = make_handler(tmp_path / "home", tiny_federation, policy=OPEN)
    policy, asked = Path(str(handler.settings.policy)), request_for("train", recipe)
    assert reason_of(handler.answer(asked)).startswith("refused: the site's policy does not allow the plugin")
    assert "a_plugin_of_ours" not in sys.modules
    policy.write_text(OPEN + 'plugins = ["a_plugin_of_ours"]')
    assert isinstance(handler.answer(asked), Update)
    policy.write_text(OPEN)  # taken back while the recipe is open
    assert reason_of(handler.answer(asked)).startswith("refused: the site's policy does not allow the plugin")
    assert "does not allow the plugin" in reason_of(handler.answer(request_for("describe", recipe)))
    monkeypatch.delitem(sys.modules, "a_plugin_of_ours")


@pytest.mark.parametrize(("kind", "leaves"), [("no", "stats"), ("numbered", "rows"), ("named", "rows")])
def test_no_name_of_a_case_leaves_unless_the_policy_says_named(
    kind: str, leaves: str, tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, protocol={"kind": "leave-one-site-out"})
    handler = make_handler(
        tmp_path / "home", tiny_federation, policy=f'minimum_images = 2\nper_case_metrics = "{kind}"'
    )
    reply = handler.answer(request_for("evaluate", recipe, part="without-north", split="test"))
    assert isinstance(reply, Evaluation)
    assert bool(reply.rows) == (leaves == "rows")
    assert bool(reply.stats) == (leaves == "stats")
    text = json.dumps(to_tensors(reply)[1]) + (tmp_path / "home" / "audit.jsonl").read_text()
    named = [path.stem for path in (tiny_federation / "north" / "images").iterdir() if path.stem in text]
    assert len(named) == (5 if kind == "named" else 0)
    if leaves == "stats":
        assert reply.stats["dice"]["count"] == 5


def test_epsilon_counts_all_parts_of_a_run_and_repeated_rounds_once(tiny_federation: Path, tmp_path: Path) -> None:
    """Noise 1 spends 4.9 in a release and 7.7 in two; the folds of a run are trainings on the same images."""
    folds = {"kind": "k-fold", "folds": 2}
    recipe = png_recipe(
        tiny_federation, "fedavg+privacy(noise=1)", training={"rounds": 1}, protocol=folds, network={"norm": "instance"}
    )
    handler = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 1\nmax_epsilon = 8")
    parts = ("fold-1", "fold-2", "fold-1", "fold-2")  # the last two are repeated after a kill
    first = [handler.answer(request_for("train", recipe, part=part)) for part in parts]
    assert all(isinstance(reply, Update) for reply in first), first
    Path(str(handler.settings.policy)).write_text("minimum_images = 1\nmax_epsilon = 5")
    for part in ("fold-1", "fold-2"):
        assert "2 updates would spend" in reason_of(handler.answer(request_for("train", recipe, part=part)))
    described = handler.answer(request_for("describe", recipe, part="fold-1"))
    assert isinstance(described, Description)
    assert "2 updates would spend" in described.refusal


def test_weights_of_another_model_are_a_failure_and_no_crash(tiny_federation: Path, tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tiny_federation)
    recipe = png_recipe(tiny_federation)
    weights = initial_weights(recipe)
    wrong = {name: torch.zeros(1, 2, 3) for name in weights}
    for broken in ({}, wrong, {"evil": torch.zeros(1)}, {**weights, "evil": torch.zeros(1)}):
        reason_of(handler.answer(request_for("train", recipe, Broadcast(0, broken))))
        reason_of(handler.answer(request_for("evaluate", recipe, Broadcast(0, broken), split="test")))
    assert isinstance(handler.answer(request_for("train", recipe, Broadcast(0, weights))), Update)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 1), (2, 2, 1, 1, 1)])
def test_weights_that_only_broadcast_are_refused(shape: tuple[int, ...]) -> None:
    """One number of noise would be shared by many weights."""
    workspace = build_workspace(tiny_recipe("fedavg+privacy", network={"norm": "instance"}), tiny_task())
    weights, name = workspace.initial_exchanged, "classifier.weight"
    evil = {**weights, name: torch.zeros(shape)}
    words = (
        f"'{name}' came as torch.float32 of shape {shape}, expected torch.float32 of shape {tuple(weights[name].shape)}"
    )
    for trains in (True, False):
        require_model(workspace, Broadcast(0, weights), trains)
        with pytest.raises(PolyclinicError) as problem:
            require_model(workspace, Broadcast(0, evil), trains)
        assert words in str(problem.value)


def test_received_weights_are_those_that_the_method_exchanges_and_no_others() -> None:
    workspace = build_workspace(tiny_recipe("fedbn"), tiny_task())
    weights, kept = workspace.initial_exchanged, workspace.initial_kept
    own = next(iter(kept))
    name = next(iter(weights))
    for broken, words in (
        ({**weights, name: weights[name].double()}, "torch.float64"),
        ({n: t for n, t in weights.items() if n != name}, "is missing"),
        ({**weights, "evil": torch.zeros(1)}, "'evil'"),
    ):
        for trains in (True, False):
            with pytest.raises(PolyclinicError, match=words):
                require_model(workspace, Broadcast(0, broken), trains)
    with pytest.raises(PolyclinicError, match=own):
        require_model(workspace, Broadcast(0, {**weights, own: kept[own]}))
    # A site that never trained is tested with an average of what the others keep.
    require_model(workspace, Broadcast(0, {**weights, **kept}), trains=False)
    with pytest.raises(PolyclinicError, match=own):
        require_model(workspace, Broadcast(0, {**weights, **kept, own: torch.zeros(1, 1, 1)}), trains=False)


def test_frozen_weights_are_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.networks import SegmentationNetwork

    monkeypatch.setattr(SegmentationNetwork, "frozen", lambda _: {"classifier.bias"})
    workspace = build_workspace(tiny_recipe("fedavg"), tiny_task())
    weights = workspace.initial_exchanged
    require_model(workspace, Broadcast(0, weights))
    for trains in (True, False):
        with pytest.raises(PolyclinicError, match=r"'classifier.bias' is not one that this method exchanges"):
            require_model(workspace, Broadcast(0, {**weights, "classifier.bias": torch.zeros(3)}), trains)


def test_what_comes_for_components_must_fit_their_declarations() -> None:
    workspace = build_workspace(tiny_recipe("scaffold"), tiny_task())
    weights, (control, *_) = workspace.initial_exchanged, workspace.returned()["scaffold"]
    one = torch.zeros(1, dtype=torch.int64)
    good = {"control": torch.zeros(control.shape[0]), "owners": one, "rounds": one}  # type: ignore[call-overload]
    require_model(workspace, Broadcast(0, weights, {"scaffold": good}))
    for broken in ({"evil": good}, {"scaffold": {**good, "control": torch.zeros(1)}}, {"weighted_mean": good}):
        with pytest.raises(PolyclinicError, match="beside the weights does not fit this method"):
            require_model(workspace, Broadcast(0, weights, broken))


def test_a_private_site_answers_weights_of_another_shape_with_a_sentence(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, "fedavg+privacy(noise=30)", network={"norm": "instance"})
    handler = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 1\nmax_epsilon = 0.5")
    weights = initial_weights(recipe)
    evil = {n: t[..., :1].clone() if t.shape[2:] == (3, 3) else t for n, t in weights.items()}
    assert "expected torch.float32 of shape" in reason_of(
        handler.answer(request_for("train", recipe, Broadcast(0, evil)))
    )
    assert not (tmp_path / "home" / "privacy" / "ledger.json").exists()


def test_a_last_epoch_of_few_images_is_refused_where_statistics_of_it_are_shared(
    tiny_federation: Path, tmp_path: Path
) -> None:
    training = {"batch_size": 1, "local_epochs": 8, "steps_per_epoch": 1}
    handler = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 2")
    for method, refused in (("fedavg+afa", True), ("fedavg", False)):
        recipe = png_recipe(tiny_federation, method, training=training, network={"norm": "instance"})
        reply = handler.answer(replace(request_for("train", recipe), run=method[-3:]))
        assert isinstance(reply, Update) != refused
        if refused:
            assert reason_of(reply).startswith("refused: the update rests on 1 image")


def test_pictures_of_unknown_cases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.components.objectives.fedmix import FedMix

    workspace = build_workspace(tiny_recipe("fedmix"), tiny_task())
    assert refusal_of_pictures(workspace) is None
    monkeypatch.delattr(FedMix, "pictures")
    assert "does not say which images" in str(refusal_of_pictures(workspace))


def test_the_policys_minimum_reaches_what_components_share(tiny_federation: Path, tmp_path: Path) -> None:
    """With one sample a class each prototype would be a pixel of one image."""
    recipe = png_recipe(tiny_federation, "fedavg+prototype_contrast(samples=1,channels=4)")
    for minimum, rows in ((1, 2), (2, 0)):
        handler = make_handler(tmp_path / str(minimum), tiny_federation, policy=f"minimum_images = {minimum}")
        update = handler.answer(request_for("train", recipe))
        assert isinstance(update, Update), update
        assert len(update.shared["prototype_contrast"]["prototypes"]) == rows
