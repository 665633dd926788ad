"""Flower's entry point at a site: every request gets an answer, and no text of the site leaves with an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message

from flower_support import FakeGrid
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site import client_app
from polyclinic.engines.flower.records import from_records, to_records

CONTEXT: Any = SimpleNamespace(node_config={}, run_config={})


@pytest.fixture(autouse=True)
def _task() -> None:
    FakeGrid({})  # a message of Flower knows the task that it was made in


def answer(kind: str = "train") -> tuple[dict[str, bytes], dict[str, Any]]:
    request = Message(to_records({"weights": b"abc"}, {"act": kind}), 1, kind)
    return from_records(client_app.app(request, CONTEXT).content)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_request_goes_to_the_site_and_its_answer_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(blobs: dict[str, bytes], about: dict[str, Any], context: Any) -> Any:
        assert context is CONTEXT
        return {name: blob * 2 for name, blob in blobs.items()}, {**about, "site": "north"}

    monkeypatch.setattr(client_app, "simulate_request", forward)
    assert answer(kind) == ({"weights": b"abcabc"}, {"act": kind, "site": "north"})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PolyclinicError("the site's worker does not answer"), "the site's worker does not answer"),
        (OSError("/home/doe/patient-7.nii"), "the site's app failed (OSError); its log says why"),
    ],
)
def test_a_problem_is_an_answer_and_an_unforeseen_one_stays_in_the_log(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(client_app, "simulate_request", fail)
    assert answer() == ({}, {"kind": "Failure", "site": "", "round": -1, "reason": reason})
    assert ("patient-7" in capsys.readouterr().err) == isinstance(error, OSError)
