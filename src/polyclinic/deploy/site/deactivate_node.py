"""Deactivate the Flower node of a site that was killed, so that the site can connect again at once.

After a power cut the server counts the old node as active for a minute, until its heartbeats are overdue, and rejects a
second node with the same key. This sends the deactivation that the old node could not send, signed with the site's key.
``python -m polyclinic.deploy.site.deactivate_node SERVER NODE KEY CA``
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Deactivate one node."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.protobuf.client import ProtobufClientInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    server, node, key, ca = arguments
    private = load_ssh_private_key(Path(key).read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, private.public_key()),
    ]
    with FleetHttpClient.from_server_address(server, False, ca, interceptors=interceptors) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=int(node)))


if __name__ == "__main__":
    main(sys.argv[1:])
