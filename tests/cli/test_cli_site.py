from __future__ import annotations

from pathlib import Path

import pytest

from support import Called, call


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


def of_north(federation: Path, *more: object) -> Called:
    return call("site", "--data", federation, "--server", "127.0.0.1:1", "--name", "north", "--insecure", *more)


def test_an_address_of_a_browser_gets_a_sentence(tiny_federation: Path, tmp_path: Path) -> None:
    done = of_north(tiny_federation, "--home", tmp_path / "home", "--server", "https://fed.example.org:8443/")
    assert (done.code, done.err) == (
        2,
        "error: --server https://fed.example.org:8443/: expected HOST:PORT, without https://; give "
        "fed.example.org:8443.\n",
    )


@pytest.mark.parametrize("data", [".", "north"])
@pytest.mark.parametrize("below", ["file", "file/home", "/proc/x"])
def test_a_home_that_cannot_be_made_gets_a_sentence(
    tiny_federation: Path, tmp_path: Path, data: str, below: str
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / below
    done = of_north(tiny_federation / data, "--home", home)
    assert done.code == 2
    assert done.err.startswith(f"error: --home {home}: cannot be made (")
    assert done.err.endswith("); give a folder that can be written.\n")


@pytest.mark.parametrize("device", ["cuda:99", "kuda"])
def test_a_device_that_is_missing_is_said_at_the_start(tiny_federation: Path, tmp_path: Path, device: str) -> None:
    done = of_north(tiny_federation, "--home", tmp_path / "home", "--device", device, "--give-up", "0")
    assert done.code == 2, done
    assert done.err.startswith(f"error: --device {device}: cannot be used here (")
    assert done.err.endswith("); give cpu, or leave it out.\n")
    assert not (tmp_path / "home").exists()
