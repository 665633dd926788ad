"""Runs that a site does not serve: every type of Flower's but one, and every bundle but polyclinic's."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import pytest
import tomli_w
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

from polyclinic.deploy.site.run_guard import CLIENT, SERVER, refusal_of_bundle, refusal_of_run


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


@pytest.mark.parametrize("task_type", [*TaskType, "flwr-anything-new", "", "FLWR-SERVERAPP", "flwr-serverapp "])
def test_only_a_server_s_program_is_served_whatever_types_flower_has(task_type: str) -> None:
    """Over Flower's own table: a type that it adds is refused without anybody having to know of it."""
    reason = refusal_of_run(task_type, bundle(pyproject_toml=project()))
    if task_type == TaskType.SERVER_APP:
        assert reason is None
        assert "brings files" in str(refusal_of_run(task_type, bundle(pyproject_toml=project(), evil_py="x")))
    else:
        assert reason is not None
        assert "starts no program" in reason
    assert set(TaskType) == set(TASK_TYPE_TO_COMMAND)


def test_a_small_file_that_unpacks_to_a_gigabyte_is_refused() -> None:
    assert "too large" in str(refusal_of_bundle(bundle(pyproject_toml=project() + " " * 2**27)))
    assert "too large" in str(refusal_of_bundle(bundle(pyproject_toml=project() + "# " + "x" * 2**14)))


def test_a_key_of_thousands_of_parts_is_not_parsed() -> None:
    """A parser's memory grows with the square of the parts, and this file is read in the process that must not die."""
    for key in ("a." * 8000 + "a=1\n", "a" + '."="' * 3000 + "=1\n"):
        assert "cannot be read" in str(refusal_of_bundle(bundle(pyproject_toml=key)))
        tracemalloc.start()
        assert "cannot be read" in str(refusal_of_bundle(bundle(pyproject_toml=project() + key)))
        assert tracemalloc.get_traced_memory()[1] < 10**7
        tracemalloc.stop()
