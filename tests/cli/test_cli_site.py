from __future__ import annotations

from pathlib import Path

import pytest

from support import call


@pytest.mark.parametrize("server", ["fed.example.org", "fed.example.org:", ":8443", "fed:https", "fed:0", "fed:70000"])
def test_an_address_that_is_none_gets_a_sentence(server: str, tmp_path: Path) -> None:
    done = call(
        "site", "--data", tmp_path, "--server", server, "--name", "north", "--insecure", "--home", tmp_path / "h"
    )
    assert done.code == 2
    assert f"--server {server}: expected HOST:PORT" in done.err


def test_the_name_is_checked_wherever_the_home_is(tmp_path: Path) -> None:
    name = "../north"
    done = call("site", "--data", tmp_path, "--server", "a:1", "--name", name, "--insecure", "--home", tmp_path / "h")
    assert done.code == 2
    assert f"'{name}' is no name of a site" in done.err


def test_what_a_site_needs_is_named() -> None:
    done = call("site", "--name", "north")
    assert done.code == 2
    assert "Give --data and --server" in done.err
