"""One image: whatever goes wrong with it is a sentence, so that the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.predict import load_model
from polyclinic.runs.prediction_job import carry_out
from polyclinic.runs.prediction_plan import Wanted, image_item


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PolyclinicError("x.png: is too small."), "x.png: is too small."),
        (MemoryError(), "needs more memory than there is; use --jobs 1"),
        (torch.OutOfMemoryError("CUDA out of memory"), "needs more memory than there is; use --jobs 1"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), "needs more memory than there is"),
        (RuntimeError("sizes differ\nat line 7"), r"case1.png: cannot be segmented (RuntimeError: sizes differ); look"),
    ],
)
def test_errors_become_sentences(
    error: Exception, words: str, finished: Callable[..., Path], tiny_federation: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    path = tiny_federation / "south" / "images" / "case1.png"
    model = load_model(finished(), site=None, part=None, model=None)
    wanted = Wanted(image_item("case1", (path,), ()), tmp_path / "case1.png", None)
    assert carry_out(*model, wanted) is None
    assert (tmp_path / "case1.png").is_file()
    monkeypatch.setattr(Workspace, "predict", fail)
    assert words in str(carry_out(*model, wanted))
