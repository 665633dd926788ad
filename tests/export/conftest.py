"""One export through the command line with every component that lives in the network, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import call

EVERYTHING = "fedavg+fsr+afa+feature_augmentation+lddg+amplitude_normalisation"


@pytest.fixture(scope="session")
def everything(finished: Callable[..., Path]) -> Path:
    """A finished run of a method with all of these components."""
    return finished(EVERYTHING)


@pytest.fixture(scope="session")
def huggingface(everything: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its model in a folder for the hub, with ONNX inside: exports to ONNX take seconds."""
    out = tmp_path_factory.mktemp("export") / "hub"
    done = call("export", everything, "--to", "huggingface-folder", "--out", out)
    assert done.code == 0, done.err
    return out
