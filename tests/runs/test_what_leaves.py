from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.preview.explain import explanation
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.what_leaves import declared_exchange


@pytest.mark.parametrize("method", ["fedbn", "scaffold"])
def test_what_is_declared_is_what_explain_says_before_a_run(finished: Callable[..., Path], method: str) -> None:
    run = finished(method)
    found, said = declared_exchange(run), explanation(load_recipe(run / "recipe.toml"))
    assert found["weights"] == {"tensors": len(said["weights"]), "bytes": said["weights_bytes"]}
    assert found["kept"] == {"tensors": len(said["kept"]), "bytes": said["kept_bytes"]}
    assert [row["tensor"] for row in found["shared"]] == [row["tensor"] for row in said["shared"]]
    assert not found["images_leave"]


def test_no_image_is_needed_but_the_task_is(finished: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    text = (finished("fedbn") / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("federation =", 'federation = "/nowhere" #', 1))
    with pytest.raises(PolyclinicError, match=r"task\.json: there is none yet"):
        declared_exchange(run)
    shutil.copy(finished("fedbn") / "task.json", run)
    assert declared_exchange(run)["kept"]["tensors"] > 0
