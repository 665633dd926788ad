from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flower_support import OPEN, FakeGrid, handler_play, make_handler, png_recipe
from polyclinic import run
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors
from polyclinic.engines.flower import engine as flower
from polyclinic.engines.flower.engine import FlowerEngine
from polyclinic.engines.flower.nodes import Nodes
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Failure, Update
from polyclinic.federation.observer import Observer, Observers
from polyclinic.federation.site import Site
from polyclinic.recipe import Recipe
from polyclinic.runs import remote_rounds
from polyclinic.runs.event_recorder import EventRecorder
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.remote_execution import RemoteExecution, refuse_impossible
from support import Interrupted, Keeper, Killer, assert_same, write_tiny_federation

SITES = ("north", "south")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_rounds, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(flower, "_FIRST_POLL", 0.005)
    monkeypatch.setattr(flower, "_LAST_POLL", 0.01)


class Told(Keeper):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


class Spoiled(FlowerEngine):
    """An engine whose answers can be changed: ``spoil(act, site, round)`` is a reason for a failure, or ``None``."""

    spoil: Callable[[str, str, int], str | None] = staticmethod(lambda act, site, number: None)

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            reason = self.spoil("train", answer.site, broadcast.round)
            yield Failure(answer.site, broadcast.round, reason) if reason else answer

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        for answer in super().evaluate(broadcast, sites, split, detailed):
            reason = self.spoil(split, answer.site, broadcast.round)
            yield Failure(answer.site, broadcast.round, reason) if reason else answer


def execute(
    folder: Path, recipe: Recipe, federation: Path, policy: str = OPEN, observer: Observer | None = None,
    spoil: Callable[[str, str, int], str | None] | None = None, resume: bool = False, sites: Sequence[str] = SITES,
    data: dict[str, Path] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A run whose sites are desks behind a played grid; the same folder again means resuming."""
    desks = {
        site: make_handler(folder / "homes" / site, (data or {}).get(site, federation), site, policy, device="cpu")
        for site in sites
    }
    grid: Any = FakeGrid({site: handler_play(desk) for site, desk in desks.items()})
    run_folder = RunFolder(folder / "run")
    run_folder.path.mkdir(parents=True, exist_ok=True)
    everyone = Observers([EventRecorder(run_folder), *([observer] if observer else [])])
    nodes = Nodes(grid, sites)
    kind = type("One", (Spoiled,), {"spoil": staticmethod(spoil)}) if spoil else FlowerEngine

    def engine_for(part: str, shipped: Recipe, text: str) -> FlowerEngine:
        made: FlowerEngine = kind(grid, nodes, "run-1", part, text, 2**24, None, 0.0, everyone)
        return made

    return RemoteExecution(recipe, sites, federation.name, run_folder, engine_for, everyone, resume).run()


def in_process(folder: Path, recipe: Recipe) -> dict[str, Any]:
    return run(recipe, out=folder / "plain").summary


def weights_of(folder: Path, part: str = "all") -> dict[str, Any]:
    tensors, about = load_tensors(folder / "checkpoints" / part / "server.safetensors")
    assert about["round"] > 0
    return tensors


@pytest.mark.parametrize(
    ("method", "sections", "parts"),
    [
        ("fedbn", {}, ["all"]),
        ("fedavg", {"protocol": {"kind": "k-fold", "folds": 2}, "training": {"rounds": 1}}, ["fold-1", "fold-2"]),
        ("fedbn", {"protocol": {"kind": "leave-one-site-out"}}, ["without-north", "without-south"]),
        ("fedavg", {"data": {"labelled": 2}, "training": {"select": "last"}}, ["all"]),
        (
            "fedbn",
            {"protocol": {"kind": "repeated-splits", "repeats": 2}, "evaluation": {"rounds": [1]}},
            ["repeat-1", "repeat-2"],
        ),
    ],
)
def test_a_run_over_a_network_is_the_run_in_one_process(
    method: str, sections: dict[str, Any], parts: list[str], tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, method, **sections)
    plain, far = in_process(tmp_path, recipe), execute(tmp_path, recipe, tiny_federation)
    for part in parts:
        assert_same(weights_of(tmp_path / "plain", part), weights_of(tmp_path / "run", part))
    assert (tmp_path / "run" / "cases.csv").read_text() == (tmp_path / "plain" / "cases.csv").read_text()
    assert (tmp_path / "run" / "task.json").read_text() == (tmp_path / "plain" / "task.json").read_text()
    assert far.get("at_rounds") == plain.get("at_rounds")
    for key in ("sites", "average", "tested_rounds", "bytes_up", "bytes_down", "distances", "federation", "refused"):
        assert far[key] == plain[key], key
    assert "untested" not in far
    assert set(far["split_sha256"]) == {parts[0]}


def test_tests_after_rounds_follow_the_sites_policies_and_survive_a_kill(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, "fedbn", training={"rounds": 3}, evaluation={"rounds": [1, 2]})
    policy = 'minimum_images = 1\nper_case_metrics = "no"'
    whole = execute(tmp_path / "whole", recipe, tiny_federation, policy)
    assert list(whole["at_rounds"]) == ["1", "2"]
    assert (tmp_path / "whole" / "run" / "cases-round-1.csv").read_text().count("\n") == 1, "no case has left"

    def spoil(act: str, site: str, number: int) -> str | None:
        if (act, site, number) == ("test", "south", 1):
            raise Interrupted
        return None

    with pytest.raises(Interrupted):
        execute(tmp_path / "cut", recipe, tiny_federation, policy, spoil=spoil)
    again = execute(tmp_path / "cut", recipe, tiny_federation, policy, resume=True)
    for key in ("sites", "average", "at_rounds", "bytes_down"):
        assert again[key] == whole[key]


def test_a_site_cannot_count_more_samples_than_it_described(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Site._samples
    monkeypatch.setattr(Site, "_samples", lambda self, w: 2**31 - 1 if self.name == "south" else honest(self, w))
    recipe = png_recipe(tiny_federation, training={"rounds": 1})
    execute(tmp_path, recipe, tiny_federation, observer=(told := Told()))
    assert "it counts 2147483647 samples, and the site has described" in told.events[0]["refused"]["south"]
    assert told.events[0]["samples"].keys() == {"north"}


def test_a_finished_run_is_read_and_not_repeated(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation)
    first = execute(tmp_path, recipe, tiny_federation)

    def never(act: str, site: str, number: int) -> str:
        raise AssertionError("somebody was asked")

    assert execute(tmp_path, recipe, tiny_federation, spoil=never, resume=True) == first


@pytest.mark.parametrize("event", ["site", "round"])
def test_a_run_that_was_killed_goes_on_to_the_same_result(event: str, tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, "fedbn", training={"rounds": 3})
    killer = Killer(lambda kind, number, site: (kind, number) == (event, 1) and site in ("", "south"))
    with pytest.raises(Interrupted):
        execute(tmp_path, recipe, tiny_federation, observer=killer)
    with pytest.raises(PolyclinicError, match="already holds a run"):
        execute(tmp_path, recipe, tiny_federation)
    far = execute(tmp_path, recipe, tiny_federation, resume=True)
    plain = in_process(tmp_path, recipe)
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "plain"))
    assert (far["sites"], far["bytes_up"]) == (plain["sites"], plain["bytes_up"])


def test_a_round_below_the_quorum_is_repeated_to_the_same_result(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, "fedbn", training={"quorum": 2, "rounds": 3})
    left = [2]

    def spoil(act: str, site: str, number: int) -> str | None:
        if (act, site, number) != ("train", "south", 1) or not left[0]:
            return None
        left[0] -= 1
        return "the scanner is on fire"

    told = Told()
    far = execute(tmp_path, recipe, tiny_federation, observer=told, spoil=spoil)
    plain = in_process(tmp_path, recipe)
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "plain"))
    assert far["sites"] == plain["sites"]
    assert [event["round"] for event in told.events] == [0, 1, 2]
    repeated = [text for text in told.messages if "it is repeated" in text]
    assert [text[-9:] for text in repeated] == ["(1 of 3).", "(2 of 3)."]


def test_a_quorum_that_never_comes_stops_the_run_with_a_sentence_and_it_can_be_resumed(
    tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation, training={"quorum": 2})
    tries = []

    def spoil(act: str, site: str, number: int) -> str | None:
        if (act, site, number) != ("train", "south", 1):
            return None
        tries.append(number)
        return "the scanner is on fire"

    with pytest.raises(PolyclinicError, match=r"Round 2 got 1 good updates of 2 sites, .*on fire.*--resume"):
        execute(tmp_path, recipe, tiny_federation, spoil=spoil)
    assert len(tries) == 4
    execute(tmp_path, recipe, tiny_federation, resume=True)
    in_process(tmp_path, recipe)
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "plain"))


def test_a_site_that_fails_a_round_is_left_out_of_it(tiny_federation: Path, tmp_path: Path) -> None:
    def spoil(act: str, site: str, number: int) -> str | None:
        return "no power" if (act, site, number) == ("train", "south", 0) else None

    told = Told()
    summary = execute(tmp_path, png_recipe(tiny_federation), tiny_federation, observer=told, spoil=spoil)
    assert [set(event["samples"]) for event in told.events] == [{"north"}, {"north", "south"}]
    assert summary["refused"] == 1
    assert told.refusals == [(0, "south", "failed: no power")]


def test_a_site_that_cannot_be_tested_is_named_in_the_summary(tiny_federation: Path, tmp_path: Path) -> None:
    def spoil(act: str, site: str, number: int) -> str | None:
        return "is not connected" if (act, site) == ("test", "south") else None

    told, recipe = Told(), png_recipe(tiny_federation)
    summary = execute(tmp_path, recipe, tiny_federation, observer=told, spoil=spoil)
    plain = in_process(tmp_path, recipe)
    assert summary["untested"] == {"south": "is not connected"}
    assert summary["sites"] == {"north": plain["sites"]["north"]}
    assert (1, "south", "is not tested: is not connected") in told.refusals


def test_a_site_whose_scores_are_held_back_is_untested(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "federation", {"north": 15, "south": 10})
    summary = execute(tmp_path, png_recipe(federation), federation, policy="minimum_images = 3")
    assert summary["sites"].keys() == {"north"}
    assert summary["untested"] == {"south": "scores of 2 images are held back, the policy asks for 3"}


@pytest.mark.parametrize("protocol", [{}, {"kind": "k-fold", "folds": 3}, {"kind": "leave-one-site-out"}])
def test_statistics_alone_give_the_means_of_the_cases(protocol: dict[str, Any], tmp_path: Path) -> None:
    """Folds of unlike size: a mean over them counts cases."""
    federation = write_tiny_federation(tmp_path / "federation", {"north": 11, "south": 10})
    recipe = png_recipe(federation, protocol=protocol, training={"rounds": 1})
    far = execute(tmp_path, recipe, federation, policy="minimum_images = 2\n")
    plain = in_process(tmp_path, recipe)
    assert (tmp_path / "run" / "cases.csv").read_text().splitlines() == ["site,case,image,class,metric,model,value"]
    assert far["sites"].keys() == plain["sites"].keys()
    for site, metrics in plain["sites"].items():
        assert far["sites"][site] == pytest.approx(metrics, abs=1e-9)
    assert far["average"] == pytest.approx(plain["average"], abs=1e-9)
    everything = "".join(path.read_text(errors="ignore") for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert "case0" not in everything


def test_a_site_with_another_task_is_named(tiny_federation: Path, tmp_path: Path) -> None:
    sizes = {"east": 4, "north": 4, "south": 4}
    three, other = (write_tiny_federation(tmp_path / name, sizes) for name in ("three", "other"))
    (other / "federation.toml").write_text('classes = ["background", "ring"]\nchannels = 1\nspatial_dims = 2\n')
    everyone = png_recipe(three, training={"quorum": 1.0})
    with pytest.raises(PolyclinicError, match=r"Site 'south' has another task than the others \(classes = .*ring"):
        execute(tmp_path / "all", everyone, three, data={"south": other}, sites=tuple(sizes))
    # A quorum goes on without it, and it does not train on classes that mean something else, though the shapes fit.
    told = Told()
    summary = execute(
        tmp_path / "some", png_recipe(three), three, observer=told, data={"south": other}, sites=tuple(sizes)
    )
    assert (-1, "south") in {(number, site) for number, site, _ in told.refusals}
    assert set(summary["sites"]) == {"east", "north"}
    # Of two sites neither decides for the other.
    with pytest.raises(
        PolyclinicError, match=r"no task is that of most \(north: classes = .*; south: classes = .*ring"
    ):
        execute(tmp_path / "two", png_recipe(tiny_federation), tiny_federation, data={"south": other})
    for event in RunFolder(tmp_path / "some" / "run").events():
        assert "this site has another task than the federation: classes" in event["refused"]["south"]


def test_before_a_round_is_done_the_sites_may_agree_on_another_task(tiny_federation: Path, tmp_path: Path) -> None:
    killer = Killer(lambda kind, number, site: kind == "site")
    recipe = png_recipe(tiny_federation, training={"rounds": 1})
    with pytest.raises(Interrupted):
        execute(tmp_path, recipe, tiny_federation, observer=killer)
    assert (tmp_path / "run" / "task.json").exists()
    other = write_tiny_federation(tmp_path / "other")
    (other / "federation.toml").write_text('classes = ["background", "ring"]\nchannels = 1\nspatial_dims = 2\n')
    execute(tmp_path, recipe, tiny_federation, data=dict.fromkeys(SITES, other))
    assert "ring" in (tmp_path / "run" / "task.json").read_text()


def test_what_a_site_says_of_itself_is_one_short_line(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FlowerEngine.describe

    def describe(self: FlowerEngine, sites: Sequence[str]) -> Iterator[Any]:
        for answer in honest(self, sites):
            if isinstance(answer, Description) and answer.site == "north":
                answer.images, answer.versions = {"\u3000of the left\xa0eye": 3}, {"polyclinic": "9" * 1000}
            if isinstance(answer, Description) and answer.site == "south":
                answer.task = {"\x1b]0;mine\x07\n" + "y" * 10**6: 1}
            yield answer

    monkeypatch.setattr(FlowerEngine, "describe", describe)
    told = Told()
    execute(tmp_path, png_recipe(tiny_federation, training={"rounds": 1}), tiny_federation, observer=told)
    said = [*told.messages, *(text for _, site, text in told.refusals if site == "south")]
    assert any(text.startswith("north: 3 of the left eye, polyclinic 999") for text in said)
    assert any("cannot be read" in text for text in said)
    assert all(text.isprintable() and len(text) <= 500 for text in said)


def test_a_refusing_site_is_told_and_the_others_go_on(tiny_federation: Path, tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(PolyclinicError, match="No site takes part"):
        execute(tmp_path, png_recipe(tiny_federation), tiny_federation, policy="methods = []", observer=told)
    assert {site for _, site, reason in told.refusals if "does not allow the method" in reason} == set(SITES)


def test_a_test_that_nobody_takes_part_in_is_not_the_end_of_a_run(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation)

    def away(act: str, site: str, number: int) -> str | None:
        return "is not connected" if act == "test" else None

    with pytest.raises(PolyclinicError, match=r"No site could be tested \(north: is not connected; south"):
        execute(tmp_path, recipe, tiny_federation, spoil=away)
    assert not (tmp_path / "run" / "checkpoints" / "all" / "tested.json").exists()
    assert set(execute(tmp_path, recipe, tiny_federation, resume=True)["sites"]) == set(SITES)


def test_what_needs_all_images_in_one_place_is_refused_before_anything_starts(tiny_federation: Path) -> None:
    for recipe, words in (
        (png_recipe(tiny_federation, "central"), "puts all images in one place"),
        (png_recipe(tiny_federation, data={"size": "auto"}), "data.size = 'auto'"),
        (png_recipe(tiny_federation, protocol={"transfer": True}), "would carry personal weights"),
        (png_recipe(tiny_federation, evaluation={"training_images": True}), "which no site tells"),
    ):
        with pytest.raises(PolyclinicError, match=words):
            refuse_impossible(recipe)


def test_personal_models_and_a_left_out_site_stop_after_one_round(tiny_federation: Path, tmp_path: Path) -> None:
    """Not after all of them, when there turns out to be no model to test."""
    recipe = png_recipe(tiny_federation, "local", protocol={"kind": "leave-one-site-out"}, training={"rounds": 5})
    told = Told()
    with pytest.raises(PolyclinicError, match="which do not leave a site"):
        execute(tmp_path, recipe, tiny_federation, observer=told)
    assert len(told.events) <= 1


def test_sites_get_neither_paths_nor_trackers_of_the_server(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, tracking={"mlflow_uri": "https://user:secret@server"})
    texts: list[str] = []

    class Stopped(Exception):  # noqa: N818
        pass

    def engine_for(part: str, shipped: Recipe, text: str) -> Any:
        texts.append(text)
        raise Stopped

    execution = RemoteExecution(recipe, SITES, "tiny", RunFolder(tmp_path / "run"), engine_for, Observer(), False)
    with pytest.raises(Stopped):
        execution.run()
    assert 'federation = "tiny"' in texts[0]
    assert str(tiny_federation) not in texts[0]
    assert "secret" not in texts[0]
