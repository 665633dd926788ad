"""Flower's HTTP client of the fleet protocol, with answers of bounded size: a server could send without end."""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read by Flower when it is imported

import httpx
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient

LARGEST_ANSWER = 16 * 2**20
"""Bytes of one answer of the server. Flower cuts arrays into objects of 5 MiB and sends each of them alone."""


class BoundedFleetHttpClient(FleetHttpClient):
    """Reads at most ``LARGEST_ANSWER`` bytes of an answer, never unpacks a compressed one, and never redirects."""

    def _send(self, context: ProtobufRequestContext, *, stream: bool = False) -> httpx.Response:  # noqa: ARG002
        def send(current: ProtobufRequestContext) -> httpx.Response:
            current.request.headers["accept-encoding"] = "identity"
            response = self._client.send(current.request, stream=True, follow_redirects=False)
            return _bounded(response)

        call: ProtobufCall = send
        for interceptor in reversed(self._interceptors):
            call = _around(interceptor, call)
        return call(context)


def _around(interceptor: ProtobufClientInterceptor, call: ProtobufCall) -> ProtobufCall:
    return lambda context: interceptor.intercept(context, call)


def _bounded(response: httpx.Response) -> httpx.Response:
    content = bytearray()
    try:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx.DecodingError("the server's answer is compressed", request=response.request)
        for chunk in response.iter_raw():
            content += chunk
            if len(content) > LARGEST_ANSWER:
                raise httpx.DecodingError("the server's answer is too large", request=response.request)
    finally:
        response.close()
    headers = [(key, value) for key, value in response.headers.multi_items() if key != "content-length"]
    return httpx.Response(response.status_code, headers=headers, content=bytes(content), request=response.request)


class VersionHeaders:
    """Adds the headers by which a SuperLink checks that the versions of Flower fit."""

    def __init__(self) -> None:
        self._headers = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add them to a request."""
        context.request.headers.update(self._headers)
        return call_next(context)
