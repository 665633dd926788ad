"""The stand-alone program: windows as MONAI's, and a process in which neither torch nor polyclinic can be imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.export.standalone.segment import Model
from polyclinic.runs.predict import predict

BLOCKED = ("torch", "polyclinic", "monai", "scipy", "onnxscript")


def model(folder: Path, **inference: object) -> Model:
    """A network whose logits depend on the place in the window, so that every window counts."""
    table = {"patch": None, "overlap": 0.5, "batch_size": 3, "multiples": [4, 4, 4], "fixed_size": None, **inference}
    (folder / "model.json").write_text(json.dumps({"classes": ["background", "a"], "inference": table}))
    return Model(folder, lambda batch: logits(torch.from_numpy(batch)).numpy())


def logits(batch: torch.Tensor) -> torch.Tensor:
    ramp = torch.linspace(-1, 1, batch.shape[2]).view(-1, *[1] * (batch.dim() - 3))
    return torch.cat([batch.cumsum(-1) * ramp, batch * 2], 1)


@pytest.mark.parametrize(("size", "patch", "overlap"), [
    ((9, 7, 5), None, 0.5), ((13, 8, 9), (8, 8, 4), 0.5), ((13, 8, 9), (6, 9, 5), 0.25), ((20, 5, 6), (7, 5, 2), 0.8),
    ((10, 10, 10), (4, 4, 4), 0.0),
])  # fmt: skip
def test_windows_are_those_of_the_run(
    size: tuple[int, ...], patch: tuple[int, ...] | None, overlap: float, tmp_path: Path
) -> None:
    images = torch.rand(2, 1, *size)
    found = model(tmp_path, patch=patch, overlap=overlap).predict(images.numpy())
    wanted = predict_probabilities(logits, images, patch, overlap, 3, (4, 4, 4))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_network_for_one_size_refuses_others(tmp_path: Path) -> None:
    one = model(tmp_path, fixed_size=[8, 8, 8], multiples=[4, 4, 4])
    assert one.predict(np.zeros((1, 1, 7, 8, 6), np.float32)).shape == (1, 2, 7, 8, 6)
    with pytest.raises(ValueError, match=r"size \[12, 8, 8\] came to a network for \[8, 8, 8\] alone"):
        one.predict(np.zeros((1, 1, 12, 8, 8), np.float32))


def alone(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder, in which the heavy packages cannot be imported."""
    hook = folder.parent / "blocked"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(
        "import sys\nclass Blocked:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {BLOCKED}:\n            raise ImportError('blocked: ' + name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(hook)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_onnx_runs_with_onnxruntime_alone(
    huggingface: Path, everything: Path, tiny_federation: Path, tmp_path: Path
) -> None:
    assert "blocked: torch" in alone(huggingface, "-c", "import torch").stderr
    done = alone(huggingface, "segment.py", str(tiny_federation / "north"), "--out", str(tmp_path / "masks"))
    assert (done.returncode, done.stderr) == (0, "")
    wanted = predict(everything, tiny_federation / "north", tmp_path / "own")
    assert done.stdout.split() == [str(tmp_path / "masks" / path.name) for path in wanted]
    for path in wanted:
        np.testing.assert_array_equal(Image.open(tmp_path / "masks" / path.name), Image.open(path))
    again = alone(huggingface, "segment.py", str(tiny_federation / "north"), "--out", str(tmp_path / "masks"))
    assert again.returncode == 1
    assert again.stderr.startswith("error: ")
    assert "is there already" in again.stderr


def test_the_example_of_the_readme_runs(huggingface: Path, tiny_federation: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", (huggingface / "README.md").read_text(), re.DOTALL)
    assert len(example) == 1
    image = huggingface / "image.png"
    image.write_bytes((tiny_federation / "north" / "images" / "case0.png").read_bytes())
    done = alone(huggingface, "-c", example[0])
    image.unlink()
    assert (done.stdout, done.stderr) == ("(16, 16) ['background', 'disc']\n", "")
