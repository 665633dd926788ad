"""The disk of a site's home is bounded: old states and prepared images go, records stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from flower_support import OPEN, make_handler, png_recipe, reason_of, request_for
from polyclinic.core.locks import shared_lock
from polyclinic.deploy.site.disk_limits import tidy_home
from polyclinic.exchange.audit import read_audit
from polyclinic.exchange.messages import Update
from polyclinic.federation.site_policy import Policy

DAY = 24 * 3600
RECORDS = ("audit.jsonl", "case_sets.json", "mark.secret", "site.log", "runs/old/all/ledger.safetensors")


def put(path: Path, size: int, days: float = 0.0) -> Path:
    """A file of a size, last changed some days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - days * DAY
    os.utime(path, (then, then))
    return path


def full_home(home: Path) -> Path:
    """A megabyte in each of three runs and two prepared sets, and records."""
    for name, days in (("old", 100), ("older", 200), ("new", 10), ("newest", 1)):
        put(home / "runs" / name / "all" / "round-00001.safetensors", 10**6, days)
        put(home / "runs" / name / "all" / "split.mark", 64, days)
    for name, days in (("least", 20), ("last", 2)):
        put(home / "cache" / f"{name}.safetensors", 10**6, days)
    for name in RECORDS:
        put(home / name, 1000, 400)
    return home


def states(home: Path) -> set[str]:
    return {path.parts[-3] for path in home.glob("runs/*/*/round-*")}


def cached(home: Path) -> set[str]:
    return {path.stem for path in (home / "cache").iterdir()}


def test_old_runs_lose_their_states_and_keep_their_ledger(tmp_path: Path) -> None:
    home, log = full_home(tmp_path / "home"), []
    assert tidy_home(home, Policy(), "older", log.append) is None
    assert states(home) == {"older", "new", "newest"}  # the one that is worked on stays, whatever its age
    assert all((home / name).exists() for name in RECORDS)
    assert (home / "runs/old/all/split.mark").exists(), "what a run is bound to stays"
    assert log == ["removed the states of run old: not used for 90 days (keep_runs_days)"]
    assert tidy_home(home, Policy(), "", log.append) is None
    assert states(home) == {"new", "newest"}
    log.clear()
    assert tidy_home(home, Policy(), "", log.append) is None
    assert log == []
    assert cached(home) == {"least", "last"}


@pytest.mark.parametrize(
    ("limit", "runs", "images", "enough"),
    [
        (0.0100, {"old", "older", "new", "newest"}, {"least", "last"}, True),
        (0.0055, {"old", "older", "new", "newest"}, {"last"}, True),
        (0.0045, {"old", "older", "new", "newest"}, set(), True),
        (0.0035, {"old", "new", "newest"}, set(), True),
        (0.0015, {"newest"}, set(), True),
        (0.0005, {"newest"}, set(), False),
    ],
)
def test_over_the_limit_the_least_recently_used_go_first(
    limit: float, runs: set[str], images: set[str], enough: bool, tmp_path: Path
) -> None:
    home = full_home(tmp_path / "home")
    reason = tidy_home(home, Policy(max_home_gb=limit, keep_runs_days=1000), "newest", lambda _: None)
    assert (states(home), cached(home)) == (runs, images)
    assert all((home / name).exists() for name in RECORDS)
    assert (reason is None) == enough
    if reason is not None:
        assert f"its policy allows {limit:g} (max_home_gb)" in reason


def test_links_are_neither_counted_nor_followed(tmp_path: Path) -> None:
    """A home may hold a link to the images, and a run's name is the server's choice."""
    images = put(tmp_path / "images" / "patient.png", 10**6, 400)
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True)
    for link in (home / "federation", home / "runs" / "linked", home / "cache"):
        link.symlink_to(tmp_path / "images", target_is_directory=True)
    assert tidy_home(home, Policy(max_home_gb=0.0005), "", lambda _: None) is None
    assert images.exists()


def test_what_is_about_to_be_written_counts(tmp_path: Path) -> None:
    home = full_home(tmp_path / "home")
    policy = Policy(max_home_gb=0.01, keep_runs_days=1000)
    assert tidy_home(home, policy, "newest", lambda _: None, 4 * 10**6) is None
    assert cached(home) == {"last"}
    assert "would hold" in str(tidy_home(home, policy, "newest", lambda _: None, 10**9))


def test_a_site_over_its_limit_refuses_works_again_and_keeps_its_records(tiny_federation: Path, tmp_path: Path) -> None:
    home, log = tmp_path / "home", []
    handler = make_handler(home, tiny_federation, policy=OPEN, log=log)
    asked = request_for("train", png_recipe(tiny_federation))
    assert isinstance(handler.answer(asked), Update)
    policy = Path(str(handler.settings.policy))
    policy.write_text(OPEN + "max_home_gb = 1e-6")
    assert "refused: the site's home would hold" in reason_of(handler.answer(asked))
    assert states(home) == {"run-1"}
    policy.write_text(OPEN + "keep_runs_days = 1")
    for file in (home / "runs" / "run-1").rglob("*"):
        os.utime(file, (0, 0))
    asked.run = "run-2"
    assert isinstance(handler.answer(asked), Update)
    assert states(home) == {"run-2"}
    assert any("removed the states of run run-1" in line for line in log)
    assert [entry["kind"] for entry in read_audit(home / "audit.jsonl")] == ["Update", "Failure", "Update"]


def test_runs_are_spared_where_memory_would_do(tmp_path: Path) -> None:
    home = full_home(tmp_path / "home")
    policy = Policy(max_home_gb=0.0045, keep_runs_days=1000)
    reason = tidy_home(home, policy, "newest", lambda _: None, 10**6, spare_runs=True)
    assert "would hold" in str(reason)
    assert (states(home), cached(home)) == ({"old", "older", "new", "newest"}, set())


def test_prepared_images_behind_a_link_and_in_use_stay(tmp_path: Path) -> None:
    home = full_home(tmp_path / "home")
    (home / "cache").rename(tmp_path / "elsewhere")
    (home / "cache").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    policy = Policy(max_home_gb=1e-9, keep_runs_days=1000)
    tidy_home(home, policy, "newest", lambda _: None)
    assert cached(home) == {"least", "last"}
    (home / "cache").unlink()
    (tmp_path / "elsewhere").rename(home / "cache")
    with (home / "cache" / "least.safetensors").open("rb") as file:
        shared_lock(file.fileno())
        tidy_home(home, policy, "newest", lambda _: None)
        assert cached(home) == {"least"}


def test_prepared_images_that_do_not_fit_are_not_written(tiny_federation: Path, tmp_path: Path) -> None:
    recipe = png_recipe(tiny_federation, data={"memory_limit_mb": 0})
    weights = request_for("train", recipe).broadcast
    small = make_handler(tmp_path / "small", tiny_federation, policy=OPEN + "max_home_gb = 5e-6")
    assert "refused: the site's home would hold" in reason_of(small.answer(request_for("train", recipe, weights)))
    assert not list((tmp_path / "small").glob("cache/*.safetensors"))
    large = make_handler(tmp_path / "large", tiny_federation, policy=OPEN)
    assert isinstance(large.answer(request_for("train", recipe, weights)), Update)
    entries = list((tmp_path / "large" / "cache").glob("*.safetensors"))
    assert sorted(entry.name.partition("-")[0] for entry in entries) == ["images", "labels"]
    # Prepared images that are there already need no room, and using them counts as use.
    for entry in entries:
        os.utime(entry, (0, 0))
    again = make_handler(tmp_path / "large", tiny_federation, policy=OPEN)
    assert isinstance(again.answer(request_for("train", recipe, weights)), Update)
    assert all(entry.stat().st_mtime > DAY for entry in entries)


@pytest.mark.parametrize(("policy", "settings"), [("max_home_gb = 5e-6", {}), ("", {"cache": "off"})])
def test_prepared_images_are_in_memory_where_the_home_is_small_or_the_site_says_so(
    policy: str, settings: dict[str, str], tiny_federation: Path, tmp_path: Path
) -> None:
    recipe = png_recipe(tiny_federation)
    weights = request_for("train", recipe).broadcast
    first = make_handler(tmp_path / "first", tiny_federation, policy=OPEN)
    expected = first.answer(request_for("train", recipe, weights))
    handler = make_handler(tmp_path / "home", tiny_federation, policy=OPEN + policy, **settings)
    reply = handler.answer(request_for("train", recipe, weights))
    assert isinstance(reply, Update), reply
    assert isinstance(expected, Update)
    assert all(torch.equal(reply.weights[name], tensor) for name, tensor in expected.weights.items())
    assert list((tmp_path / "first" / "cache").glob("*.safetensors"))
    assert not list((tmp_path / "home").glob("cache/*.safetensors"))
