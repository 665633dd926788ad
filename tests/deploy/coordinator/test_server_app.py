"""Flower's entry point at the server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polyclinic.deploy.coordinator import server_app, server_process


def test_the_app_serves_the_run_of_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(server_process, "serve", lambda *arguments: served.append(arguments))
    grid: Any = object()
    context: Any = SimpleNamespace(run_config={"run": "folder"}, node_config={})
    server_app.app(grid, context)
    assert served == [(grid, {"run": "folder"})]
