"""Registering sites at the SuperLink, through Flower's control interface: one client for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import ServerKeys


def register_sites(address: ListenAddress, public_keys: Mapping[str, Path]) -> None:
    """Register each site's ``NAME.pub`` under its name; raises with the name of the first that Flower refuses."""
    import httpx
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http import RuntimeVersionHttpInterceptor

    from polyclinic.deploy.keys.public_keys import read_public_key

    certificate = None if address.keys is None else read_bytes(ServerKeys(address.keys).ca_cert)
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    client = ControlHttpClient.from_server_address(address.local, certificate is None, certificate, [version])
    try:
        for name, file in public_keys.items():
            read_public_key(file)  # says what is wrong with a file, where Flower would end this process
            answer = client.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(file), name=name))
            if not answer.node_id:
                raise PolyclinicError(f"registering {name} failed: Flower gave it no node; see flower/superlink.log.")
    except httpx.HTTPStatusError as error:
        reason = error.response.text[:200]
        raise PolyclinicError(f"registering {name} failed: {reason}; see flower/superlink.log.") from error
    except httpx.HTTPError as error:
        raise PolyclinicError(f"registering {name} failed: {error}; see flower/superlink.log.") from error
    finally:
        client.close()
