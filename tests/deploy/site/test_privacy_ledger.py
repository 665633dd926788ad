"""The privacy ledger of a site, attacked as a server would: no name, no noise and no kill gets more than the limit."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flower_support import initial_weights, make_handler, png_recipe, reason_of, request_for
from polyclinic.components.toolbox.privacy.accounting import epsilon_of
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.privacy_ledger import PrivacyLedger, spending_lines
from polyclinic.deploy.site.request_handler import RequestHandler
from polyclinic.exchange.messages import Broadcast, Description, Failure, Message, Update
from polyclinic.exchange.request import Request
from support import assert_same

LIMIT = "minimum_images = 1\nmax_epsilon = {}\n"


def asked(
    federation: Path, noise: float = 1.0, run: str = "run-1", number: int = 0, part: str = "all", **sections: Any
) -> Request:
    method = sections.pop("method", f"fedavg+privacy(noise={noise})")
    training = sections.pop("training", {"rounds": 1})
    recipe = png_recipe(federation, method, training=training, network={"norm": "instance"}, **sections)
    return replace(request_for("train", recipe, Broadcast(number, initial_weights(recipe)), part), run=run)


def site(tmp_path: Path, federation: Path, limit: float = 5) -> RequestHandler:
    return make_handler(tmp_path / "home", federation, policy=LIMIT.format(limit), device="cpu")


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    return list(json.loads((tmp_path / "home" / "privacy" / "ledger.json").read_text())["releases"])


def test_almost_no_noise_is_no_privacy(tiny_federation: Path, tmp_path: Path) -> None:
    handler = site(tmp_path, tiny_federation, 100)
    for noise in (1e-12, 1e-300, 0.001):
        reply = handler.answer(asked(tiny_federation, noise))
        assert reason_of(reply).startswith("refused: 1 updates would spend an epsilon of")
    assert not (tmp_path / "home" / "privacy").exists()


def test_a_new_name_of_a_run_brings_no_new_budget(tiny_federation: Path, tmp_path: Path) -> None:
    """Noise 1 spends 4.4 in one release and 7.1 in two."""
    handler = site(tmp_path, tiny_federation)
    assert isinstance(handler.answer(asked(tiny_federation)), Update)
    for run in ("run-2", "run-3"):
        request = asked(tiny_federation, run=run)
        assert "2 updates would spend" in reason_of(handler.answer(request))
        described = handler.answer(replace(request, act="describe"))
        assert isinstance(described, Description)
        assert "over all runs; the site's policy allows 5" in described.refusal
    restarted = site(tmp_path, tiny_federation)
    assert "2 updates would spend" in reason_of(restarted.answer(asked(tiny_federation, run="run-4")))
    assert [one["run"] for one in entries(tmp_path)] == ["run-1"]


def test_each_release_is_priced_at_its_own_noise(tiny_federation: Path, tmp_path: Path) -> None:
    """Six updates passed once: the noise was raised between requests, and all were priced at the newest."""
    handler = site(tmp_path, tiny_federation)
    left = []
    for number, noise in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0)):
        request = asked(tiny_federation, noise, run=f"run-{number}", training={"rounds": 1})
        if isinstance(handler.answer(request), Update):
            left.append(noise)
    assert left != [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert [one["noise"] for one in entries(tmp_path)] == left
    assert epsilon_of(left, 1e-5) <= 5


def test_parts_of_a_run_are_trainings_on_the_same_images(tiny_federation: Path, tmp_path: Path) -> None:
    handler = site(tmp_path, tiny_federation)
    folds = {"kind": "k-fold", "folds": 2}
    described = handler.answer(replace(asked(tiny_federation, part="fold-1", protocol=folds), act="describe"))
    assert isinstance(described, Description)
    assert "2 updates would spend" in described.refusal, "both folds are planned"
    out = {"protocol": {"kind": "leave-one-site-out"}}
    replies = [handler.answer(asked(tiny_federation, part=f"without-{name}", **out)) for name in ("south", "west")]
    assert isinstance(replies[0], Update)
    assert isinstance(replies[1], Failure)


def test_what_is_planned_must_fit_before_anything_leaves(tiny_federation: Path, tmp_path: Path) -> None:
    handler = site(tmp_path, tiny_federation, 8)
    for rounds, words in ((3, "3 updates would spend"), (2, "")):
        request = replace(asked(tiny_federation, training={"rounds": rounds}, run=f"run-{rounds}"), act="describe")
        described = handler.answer(request)
        assert isinstance(described, Description)
        assert words in described.refusal
        assert bool(words) == bool(described.refusal)
    for number in range(2):
        request = asked(tiny_federation, training={"rounds": 2}, run="run-2", number=number)
        assert isinstance(handler.answer(request), Update)
    assert "3 updates would spend" in reason_of(
        handler.answer(asked(tiny_federation, training={"rounds": 1}, run="run-4", number=0))
    )


def test_a_repeated_round_gives_the_same_update_and_spends_nothing(tiny_federation: Path, tmp_path: Path) -> None:
    handler, request = site(tmp_path, tiny_federation), asked(tiny_federation)
    first = handler.answer(request)
    again = [handler.answer(request), site(tmp_path, tiny_federation).answer(request)]
    assert isinstance(first, Update)
    for reply in again:
        assert isinstance(reply, Update)
        assert_same(reply.weights, first.weights)
    (entry,) = entries(tmp_path)
    assert (entry["run"], entry["part"], entry["round"], entry["noise"]) == ("run-1", "all", 0, 1.0)


def test_without_the_files_of_its_rounds_a_site_still_knows_what_it_spent(
    tiny_federation: Path, tmp_path: Path
) -> None:
    """The secret is gone with them, so the same round gets other noise: that is another release."""
    handler, request = site(tmp_path, tiny_federation), asked(tiny_federation)
    assert isinstance(handler.answer(request), Update)
    for file in (tmp_path / "home" / "runs").rglob("*.safetensors"):
        file.unlink()
    assert "2 updates would spend" in reason_of(site(tmp_path, tiny_federation).answer(request))


def test_seeded_noise_is_refused_and_bounds_nothing(tiny_federation: Path, tmp_path: Path) -> None:
    method = "fedavg+privacy(noise=50,seeded=true)"
    assert "neither seeded" in reason_of(site(tmp_path, tiny_federation).answer(asked(tiny_federation, method=method)))
    without_limit = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 1")
    assert isinstance(without_limit.answer(asked(tiny_federation, method=method)), Update)
    assert entries(tmp_path) == [], "it left like any update without privacy"


def test_updates_are_entered_before_there_is_a_limit(tiny_federation: Path, tmp_path: Path) -> None:
    without_limit = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 1")
    assert isinstance(without_limit.answer(asked(tiny_federation)), Update)
    assert "2 updates would spend" in reason_of(
        site(tmp_path, tiny_federation).answer(asked(tiny_federation, run="run-2"))
    )


def test_a_kill_between_the_ledger_and_the_answer_costs_one_release(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, request = site(tmp_path, tiny_federation), asked(tiny_federation)

    def killed(*_: Any) -> Message:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(handler, "_audited", killed)
        with pytest.raises(KeyboardInterrupt):
            handler.answer(request)
    assert len(entries(tmp_path)) == 1, "on the disk before anything could leave"
    assert isinstance(site(tmp_path, tiny_federation).answer(request), Update)
    assert len(entries(tmp_path)) == 1


def test_a_kill_before_the_ledger_is_made_good_by_the_repetition(
    tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, request = site(tmp_path, tiny_federation), asked(tiny_federation)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PrivacyLedger, "enter", killed)
        with pytest.raises(KeyboardInterrupt):
            handler.answer(request)
    assert isinstance(site(tmp_path, tiny_federation).answer(request), Update)
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"releases": 5}', '{"releases": [{}]}', '{"releases": [], "more": 1}',
     '{"releases": [{"run": "r", "part": "all", "round": 0, "noise": 0, "mark": "", "recipe": "", "time": ""}]}'],
)  # fmt: skip
def test_a_damaged_ledger_lets_nothing_leave(text: str, tiny_federation: Path, tmp_path: Path) -> None:
    handler, request = site(tmp_path, tiny_federation, 1000), asked(tiny_federation)
    assert isinstance(handler.answer(request), Update)
    (tmp_path / "home" / "privacy" / "ledger.json").write_text(text)
    without_limit = make_handler(tmp_path / "home", tiny_federation, policy="minimum_images = 1")
    for one in (handler, without_limit):
        reason = reason_of(one.answer(request))
        assert reason == "something is wrong with the site's files, so nothing leaves; its log says what"


def test_a_ledger_that_cannot_be_written_lets_nothing_leave(tiny_federation: Path, tmp_path: Path) -> None:
    handler = site(tmp_path, tiny_federation)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "privacy").write_text("in the way")
    assert isinstance(handler.answer(asked(tiny_federation)), Failure)


def old_home(home: Path, releases: int = 2) -> None:
    """What a run of a version without this ledger left: marks, and no noise."""
    folder = home / "runs" / "old" / "all"
    folder.mkdir(parents=True)
    marks = torch.arange(releases * 32, dtype=torch.uint8).reshape(releases, 32)
    save_file(
        {"privacy/secret": torch.zeros(32, dtype=torch.uint8), "privacy/releases": marks}, folder / "ledger.safetensors"
    )


def test_what_older_runs_spent_is_taken_over_and_never_forgotten(tiny_federation: Path, tmp_path: Path) -> None:
    old_home(tmp_path / "home")
    handler = site(tmp_path, tiny_federation, 1000)
    request = asked(tiny_federation)
    assert "2 updates left this site with a noise that its ledger does not know" in reason_of(handler.answer(request))
    (tmp_path / "home" / "runs" / "old" / "all" / "ledger.safetensors").unlink()
    again = site(tmp_path, tiny_federation, 1000)
    assert "2 updates left" in reason_of(again.answer(request)), "taken over at the first start"
    file = tmp_path / "home" / "privacy" / "ledger.json"
    file.write_text(file.read_text().replace('"noise": null', '"noise": 0.5'))
    assert isinstance(again.answer(request), Update)
    assert [one["noise"] for one in entries(tmp_path)] == [0.5, 0.5, 1.0]


def test_a_ledger_that_was_removed_is_made_again_from_the_runs(tiny_federation: Path, tmp_path: Path) -> None:
    assert isinstance(site(tmp_path, tiny_federation).answer(asked(tiny_federation, noise=1.25)), Update)
    (before,) = entries(tmp_path)
    (tmp_path / "home" / "privacy" / "ledger.json").unlink()
    assert PrivacyLedger(tmp_path / "home").releases()[0].noise == 1.25
    (after,) = entries(tmp_path)
    assert after["mark"] == before["mark"]


def test_the_ledger_is_the_owners_alone(tiny_federation: Path, tmp_path: Path) -> None:
    assert isinstance(site(tmp_path, tiny_federation).answer(asked(tiny_federation)), Update)
    mode = (tmp_path / "home" / "privacy" / "ledger.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_what_is_left_is_said_in_sentences(tiny_federation: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert spending_lines(home, None) == []
    assert spending_lines(home, 5)[0] == "privacy: 0 updates in all runs spent an epsilon of 0, 5 allowed (max_epsilon)"
    assert isinstance(site(tmp_path, tiny_federation).answer(asked(tiny_federation)), Update)
    spent, left = spending_lines(home, 5)
    assert spent.startswith("privacy: 1 update in all runs spent an epsilon of 4.38, 5 allowed")
    least = float(left.split("a noise of ")[1].split()[0])
    assert epsilon_of([1.0, least * 1.01], 1e-5) <= 5 < epsilon_of([1.0, least * 0.98], 1e-5)
    assert spending_lines(home, 4)[1] == "privacy: left is nothing"
    old_home(home)
    (home / "privacy" / "ledger.json").unlink()
    assert "the noise of 2 of them is unknown" in spending_lines(home, 5)[1]


def test_a_broken_ledger_of_an_older_run_is_no_empty_one(tmp_path: Path) -> None:
    old_home(tmp_path)
    (tmp_path / "runs" / "old" / "all" / "ledger.safetensors").write_bytes(b"broken")
    with pytest.raises(PolyclinicError):
        PrivacyLedger(tmp_path).releases()
    assert not (tmp_path / "privacy" / "ledger.json").exists()
