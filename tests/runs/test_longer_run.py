"""More rounds for a run that was started or is finished, and what a finished run keeps for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import polyclinic
from kill_moments import copied_at_every_moment, written_by
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_about, load_tensors
from polyclinic.recipe.files import load_recipe
from polyclinic.runs import longer_run
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.predict import predict
from run_files import events_of, rows_of, summary_of
from support import Interrupted, Killer, call

Finished = Callable[..., Path]
LEAVE_ONE_OUT = "protocol.kind=leave-one-site-out"


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of all files of a run, by file and name."""
    files = sorted(path.relative_to(run) for path in run.rglob("*.safetensors"))
    return {f"{file}:{name}": tensor for file in files for name, tensor in load_tensors(run / file)[0].items()}


def assert_same_run(run: Path, other: Path) -> None:
    """Files, tensors bit for bit, scores, and the record but for its seconds."""
    one, two = tensors_of(run), tensors_of(other)
    assert one.keys() == two.keys()
    assert not [name for name in one if not torch.equal(one[name], two[name])]
    assert rows_of(run) == rows_of(other)
    first, second = (sorted(events_of(path), key=lambda event: event["part"]) for path in (run, other))
    assert [{**event, "seconds": 0} for event in first] == [{**event, "seconds": 0} for event in second]
    times = {"seconds": 0, "seconds_by_phase": 0}
    assert {**summary_of(run), **times} == {**summary_of(other), **times}


def lengthened(recipe: Path, run: Path, method: str, rounds: int, *overrides: str) -> Path:
    changed = [*overrides, f"training.rounds={rounds}"]
    return polyclinic.run(recipe, out=run, method=method, overrides=changed, resume=True).folder


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("fedbn", ()),  # kept weights; its best round is not always the last
        ("fedheal+model_contrast", ()),  # memory of components at both ends
        ("central", ()),
        ("fedbn", (LEAVE_ONE_OUT,)),
        ("local", (LEAVE_ONE_OUT, "training.optimizer=sgd", "training.lr=0.3")),
    ],
)
def test_a_longer_run_ends_like_one_that_was_as_long_from_the_start(
    method: str, overrides: tuple[str, ...], tiny_recipe_file: Path, finished: Finished, tmp_path: Path
) -> None:
    run = shutil.copytree(finished(method, "training.rounds=2", *overrides), tmp_path / "run")
    lengthened(tiny_recipe_file, run, method, 3, *overrides)
    assert_same_run(run, finished(method, *overrides))
    assert load_recipe(run / "recipe.toml").training.rounds == 3


def test_a_finished_run_keeps_one_state_of_each_site_and_nothing_of_older_rounds(finished: Finished) -> None:
    files = {str(path.relative_to(run)) for run in [finished("fedbn")] for path in run.rglob("*.safetensors")}
    sites = {f"sites/{site}/all/round-00002.safetensors" for site in ("north", "south")}
    assert files == {"checkpoints/all/server.safetensors", "checkpoints/all/best.safetensors", *sites}
    parts = finished("fedavg", LEAVE_ONE_OUT)
    kept = sorted(str(path.relative_to(parts)) for path in parts.rglob("round-*"))
    assert kept == [
        "sites/north/without-south/round-00002.safetensors",
        "sites/south/without-north/round-00002.safetensors",
    ]


@pytest.mark.parametrize("schedule", ["cosine", "poly"])
def test_where_no_longer_run_is_possible_the_optimiser_goes_and_the_models_stay(
    schedule: str, finished: Finished, tiny_recipe_file: Path, tiny_federation: Path, tmp_path: Path
) -> None:
    override = f"training.schedule={schedule}"
    plain = finished("fedavg", override)
    assert not list(plain.rglob("round-*"))
    run = shutil.copytree(finished("fedbn", override), tmp_path / "run")
    tensors, _ = load_tensors(run / "sites" / "south" / "all" / "round-00002.safetensors")
    assert {name.partition("/")[0] for name in tensors} <= {"personal", "best"}
    assert predict(run, tiny_federation / "south" / "images", tmp_path / "masks", site="south")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(
        PolyclinicError,
        match=rf"training\.rounds = 3 cannot become 4, because training\.schedule = '{schedule}' spreads the learning "
        r"rate over all rounds; resume with the same number, or start a new run in another folder with --out\.",
    ):
        lengthened(tiny_recipe_file, run, "fedbn", 4, override)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_depends_on_the_number_of_rounds_is_refused_by_name(
    finished: Finished, tiny_recipe_file: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished("fedavg+gaa"), tmp_path / "gaa")
    with pytest.raises(PolyclinicError, match="what gaa does in a round depends on their number"):
        lengthened(tiny_recipe_file, run, "fedavg+gaa", 4)
    assert not list(run.rglob("round-*"))
    override = "training.validate_every=2"
    run = shutil.copytree(finished("fedavg", override), tmp_path / "validated")
    with pytest.raises(PolyclinicError, match=r"the model of round 3 was validated because it was the last one, and"):
        lengthened(tiny_recipe_file, run, "fedavg", 4, override)


def test_rounds_that_are_done_stay_done(finished: Finished, tiny_recipe_file: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished("fedbn"), tmp_path / "run")
    with pytest.raises(PolyclinicError, match=r"rounds = 3 cannot become 2, because 3 rounds are done;"):
        lengthened(tiny_recipe_file, run, "fedbn", 2)
    with pytest.raises(PolyclinicError, match=r"differs from the recipe to resume in training\.lr, training\.rounds;"):
        lengthened(tiny_recipe_file, run, "fedbn", 4, "training.lr=0.5")
    with pytest.raises(PolyclinicError, match=r"another recipe \(training\.rounds differs\)"):
        polyclinic.run(tiny_recipe_file, out=run, method="fedbn", overrides=["training.rounds=4"])


def test_an_interrupted_run_may_become_longer_or_shorter(
    finished: Finished, tiny_recipe_file: Path, tmp_path: Path
) -> None:
    killer = Killer(lambda what, number, _: (what, number) == ("round", 1))
    with pytest.raises(Interrupted):
        polyclinic.run(
            tiny_recipe_file, out=tmp_path / "run", method="fedbn", overrides=["training.rounds=9"], observer=killer
        )
    lengthened(tiny_recipe_file, tmp_path / "run", "fedbn", 3)
    assert_same_run(tmp_path / "run", finished("fedbn"))


def test_a_run_that_lost_its_patience_stays_stopped(finished: Finished, tiny_recipe_file: Path, tmp_path: Path) -> None:
    overrides = ("training.patience=1", "training.lr=1.0")
    run = shutil.copytree(finished("fedavg", *overrides, "training.rounds=6"), tmp_path / "run")
    rounds = len(events_of(run))
    assert rounds < 6, "else this test says nothing"
    assert not list(run.rglob("round-*")), "no round is left that could use them"
    scores = rows_of(run)
    lengthened(tiny_recipe_file, run, "fedavg", 9, *overrides)
    assert (len(events_of(run)), rows_of(run), summary_of(run)["rounds"]) == (rounds, scores, 9)


def test_a_kill_between_the_results_and_the_recipe_leaves_a_run_of_the_old_length(
    finished: Finished, tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = finished("fedbn", "training.rounds=2")
    run = shutil.copytree(short, tmp_path / "run")

    def killed(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(longer_run, "write_text", killed)
        with pytest.raises(Interrupted):
            lengthened(tiny_recipe_file, run, "fedbn", 3)
    assert RunFolder(run).summary() is None
    again = shutil.copytree(run, tmp_path / "again")
    lengthened(tiny_recipe_file, run, "fedbn", 2)
    assert_same_run(run, short)
    lengthened(tiny_recipe_file, again, "fedbn", 3)
    assert_same_run(again, finished("fedbn"))


def test_the_record_may_be_a_round_ahead_of_the_checkpoint_when_a_run_is_killed(
    finished: Finished, tiny_recipe_file: Path, tmp_path: Path
) -> None:
    """A round's line is written before its checkpoint, which is written while sites train in the next round."""
    with written_by("slow checkpoints"), copied_at_every_moment(tmp_path / "run", tmp_path) as moments:
        polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method="fedbn")
    ahead = [
        moment
        for moment in moments
        if (server := moment / "checkpoints/all/server.safetensors").exists()
        and len(events_of(moment)) > load_about(server)["round"]
    ]
    assert ahead
    for moment in (ahead[0], ahead[-1]):
        polyclinic.run(tiny_recipe_file, out=moment, method="fedbn", resume=True)
        assert_same_run(moment, finished("fedbn"))


def test_a_kill_while_a_finished_run_is_tidied_leaves_nothing_behind(
    finished: Finished, tiny_recipe_file: Path, tmp_path: Path
) -> None:
    reference = finished("fedbn", "training.schedule=cosine")
    files = {path.relative_to(reference) for path in reference.rglob("*.safetensors")}
    with copied_at_every_moment(tmp_path / "run", tmp_path) as moments:
        polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method="fedbn", overrides=["training.schedule=cosine"])
    tested = [
        m for m in moments if (m / "checkpoints/all/tested.json").exists() and not RunFolder(m).summary_file.exists()
    ]
    assert len(tested) > 3
    for moment in tested[::2]:
        polyclinic.run(
            tiny_recipe_file, out=moment, method="fedbn", overrides=["training.schedule=cosine"], resume=True
        )
        assert {path.relative_to(moment) for path in moment.rglob("*.safetensors")} == files
        assert rows_of(moment) == rows_of(reference)


def test_from_the_command_line(finished: Finished, tiny_recipe_file: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished("fedavg", "training.rounds=2"), tmp_path / "run")
    done = call("run", tiny_recipe_file, "--out", run, "--resume", "--set", "training.rounds=3")
    assert done.code == 0, done.err
    assert "resumed after round 2 of 3" in done.err
    assert_same_run(run, finished())
