"""The program beside others; tests of prediction_processes start it for real."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.runs.predict import predict
from polyclinic.runs.predict_program import main
from polyclinic.runs.prediction_plan import Wanted, image_item


def test_requests_are_answered_one_by_one(
    finished: Callable[..., Path], tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, missing = (tiny_federation / "south" / "images" / name for name in ("case1.png", "none.png"))
    wanted = [Wanted(image_item(path.stem, (path,), ()), tmp_path / path.name, None) for path in (missing, image)]
    requests = "".join(json.dumps(one.as_plain()) + "\n" for one in wanted)
    monkeypatch.setattr("sys.stdin", io.StringIO(requests))
    read, write = os.pipe()
    monkeypatch.setattr(os, "dup", lambda _: write)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    main([f"--run={finished('fedbn')}", "--site=south"])
    os.close(write)
    with os.fdopen(read) as answers:
        failed, done = (json.loads(line) for line in answers)
    assert done is None
    assert failed.startswith(f"{missing}: cannot be read")
    (plain,) = predict(finished("fedbn"), image, tmp_path / "plain", site="south")
    assert (tmp_path / "case1.png").read_bytes() == plain.read_bytes()


def test_a_run_that_cannot_be_opened_ends_with_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    descriptors = [os.dup(1), os.dup(2)]
    try:
        with pytest.raises(SystemExit) as end:
            main([f"--run={tmp_path}"])
    finally:
        for number, kept in enumerate(descriptors, start=1):
            os.dup2(kept, number)
            os.close(kept)
    assert end.value.code == 2
    assert f"error: {tmp_path}: not a run folder" in capfd.readouterr().err
