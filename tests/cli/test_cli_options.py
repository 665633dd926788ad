from __future__ import annotations

import sys

import pytest
import typer

from polyclinic.cli.options import interruptible


def test_ctrl_c_says_how_to_go_on_with_words_that_a_shell_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/polyclinic", "compare", "my recipe.toml", "--methods", "moon(mu=1)"])
    with pytest.raises(typer.Exit) as end, interruptible():
        raise KeyboardInterrupt
    assert end.value.exit_code == 130
    written = capsys.readouterr()
    assert written.err.splitlines()[-1] == "  polyclinic compare 'my recipe.toml' --methods 'moon(mu=1)'"
    assert written.out == ""


def test_other_errors_and_none_pass() -> None:
    with interruptible():
        pass
    with pytest.raises(ValueError, match="wrong"), interruptible():
        raise ValueError("wrong")
