from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from support import call

Finished = Callable[..., Path]


def test_text_and_json_say_what_was_checked(finished: Finished, tmp_path: Path) -> None:
    done = call("export", finished(), "--to", "torchscript", "--out", tmp_path / "text")
    assert done.code == 0
    first, second = done.out.splitlines()
    assert first.startswith("checked on 2 test images: masks are identical (512 pixels, ")
    assert second.startswith(f"9 files written to {tmp_path / 'text'}: MODEL_CARD.md, ")
    done = call("export", finished(), "--to", "torchscript", "--out", tmp_path / "json", "--model", "last", "--json")
    found = json.loads(done.out)
    assert found["folder"] == str(tmp_path / "json")
    assert found["chosen"] == {"part": "all", "site": None, "model": "last", "round_number": 3}
    assert found["check"]["kind"] == "test"
    assert found["check"]["differing"] == 0


def test_errors_are_sentences(finished: Finished, tmp_path: Path) -> None:
    done = call("export", finished(), "--to", "onxx", "--out", tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert "no such format, did you mean 'onnx'?" in done.err
    done = call("export", finished(), "--to", "onnx", "--model", "newest", "--out", tmp_path / "out")
    assert (done.code, done.err) == (2, "error: --model newest: expected best or last.\n")
    assert call("export", finished()).code == 2
    assert not (tmp_path / "out").exists()
