from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import tomli_w

from polyclinic.deploy.site.bundle_guard import CLIENT, SERVER, refusal_of_bundle, write_guard


def project(client: str = CLIENT, server: str = SERVER) -> str:
    components = {"serverapp": server, "clientapp": client}
    return tomli_w.dumps({"project": {"name": "x"}, "tool": {"flwr": {"app": {"components": components}}}})


def bundle(**files: str) -> bytes:
    """``a__b`` stands for ``a/b``."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/").replace("_toml", ".toml").replace("_py", ".py"), text)
    return held.getvalue()


def test_the_app_of_polyclinic_runs() -> None:
    assert refusal_of_bundle(bundle(pyproject_toml=project())) is None
    assert refusal_of_bundle(bundle(**{"pyproject_toml": project(), ".info__CONTENT": "pyproject.toml,1,2"})) is None


@pytest.mark.parametrize(
    "name", ["evil_py", "polyclinic____init___py", "sitecustomize_py", "pyproject_toml_bak", "a__"]
)
def test_a_file_of_its_own_is_refused(name: str) -> None:
    reason = refusal_of_bundle(bundle(**{"pyproject_toml": project(), name: "import os"}))
    assert reason is not None
    assert "brings files of its own" in reason


@pytest.mark.parametrize(
    "text", [project(client="evil:app"), project(server="evil:app"), project(client=CLIENT + "2"), project("", "")]
)
def test_another_app_is_refused(text: str) -> None:
    assert "names another app" in str(refusal_of_bundle(bundle(pyproject_toml=text)))


def encrypted() -> bytes:
    """A bundle whose file asks for a password."""
    data = bytearray(bundle(pyproject_toml=project()))
    data[data.index(b"PK\x03\x04") + 6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def of_unknown_compression() -> bytes:
    data = bytearray(bundle(pyproject_toml=project()))
    data[data.index(b"PK\x03\x04") + 8] = 77
    data[data.index(b"PK\x01\x02") + 10] = 77
    return bytes(data)


def damaged() -> bytes:
    data = bytearray(bundle(pyproject_toml=project() * 50))
    data[60:70] = b"\xff" * 10
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zip",
        bundle(pyproject_toml=project())[:-10],
        bundle(),
        bundle(**{".info__CONTENT": ""}),
        bundle(pyproject_toml="not [ toml"),
        bundle(pyproject_toml="tool = 5"),
        bundle(pyproject_toml="[tool]\nflwr = 'x'"),
        bundle(pyproject_toml="[project]\nname = 'x'"),
        encrypted(),
        of_unknown_compression(),
        damaged(),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    assert "cannot be read" in str(refusal_of_bundle(data))


def test_the_guard_stands_under_flower_s_name_and_can_be_started(tmp_path: Path) -> None:
    folder = write_guard(tmp_path / "guard")
    script = folder / "flwr-clientapp"
    assert os.access(script, os.X_OK)
    first, *code = script.read_text().splitlines()
    assert first == f"#!{sys.executable}"
    compile("\n".join(code), str(script), "exec")
    assert write_guard(folder) == folder
    path = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    found = subprocess.run(["sh", "-c", "command -v flwr-clientapp"], env=path, capture_output=True, text=True)
    assert found.stdout.strip() == str(script)


def test_both_doors_of_flower_are_where_the_guard_shuts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode.runtime import run_clientapp as module

    from polyclinic.deploy.site import bundle_guard as guard
    from polyclinic.deploy.site.client_app import app

    program = import_module("flwr.supernode.cli.flwr_clientapp")
    called: list[str] = []
    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    monkeypatch.setattr(program, "flwr_clientapp", lambda: called.append("flower"))
    guard.clientapp()
    assert called == ["flower"]
    assert module.get_load_client_app_fn("any", run="thing")("fab", "hash") is app  # type: ignore[call-arg, arg-type, comparison-overlap]
    module.install_from_fab(bundle(pyproject_toml=project()), flwr_dir=None)
    with pytest.raises(PermissionError, match="brings files of its own"):
        module.install_from_fab(bundle(pyproject_toml=project(), evil_py="x"), flwr_dir=None)
