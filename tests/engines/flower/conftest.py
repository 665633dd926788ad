"""A server of the fleet protocol that a test controls, and a site's client that is connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyclinic[flower]'")

from fleet_server import FleetServer, Run, serving
from polyclinic.engines.flower.fleet_client import FleetClient


@pytest.fixture
def server() -> Iterator[FleetServer]:
    with serving(FleetServer({3: Run(bundle=b"files")})) as running:
        yield running


@pytest.fixture
def client(server: FleetServer) -> Iterator[FleetClient]:
    opened = FleetClient(f"127.0.0.1:{server.port}", None, None)
    opened.activate()
    yield opened
    opened.close()
