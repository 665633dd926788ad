"""The deactivation of a killed site's node: which server, which node, signed with which key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from polyclinic.deploy.site.deactivate_node import main


class FakeClient:
    """Keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.open = False

    def __enter__(self) -> FakeClient:
        self.open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False

    def DeactivateNode(self, request: Any) -> None:  # noqa: N802
        assert self.open
        self.requests.append(request)


def test_the_node_is_deactivated_at_the_server_with_the_key_of_the_site(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, calls = FakeClient(), []

    def connect(*arguments: Any, interceptors: Any) -> FakeClient:
        calls.append((arguments, interceptors))
        return client

    monkeypatch.setattr(FleetHttpClient, "from_server_address", connect)
    key, authority = (str(keys / "ours" / "hospitals" / "north" / name) for name in ("north.key", "ca.crt"))
    main(["fed.example.org:8443", "17", key, authority])
    (((server, insecure, ca), interceptors),) = calls
    assert (server, insecure, ca) == ("fed.example.org:8443", False, authority)
    assert any(isinstance(interceptor, NodeAuthHttpInterceptor) for interceptor in interceptors)
    assert [request.node_id for request in client.requests] == [17]
    assert not client.open


def test_a_missing_key_or_argument_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FleetHttpClient, "from_server_address", lambda *_, **__: pytest.fail("connected"))
    with pytest.raises(FileNotFoundError):
        main(["a:1", "17", str(tmp_path / "none"), "ca"])
    with pytest.raises(ValueError, match="not enough values"):
        main(["a:1", "17"])
