"""The headers by which a site shows who it is, made as Flower makes them."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message


def signed_headers(key: Path, ahead: float = 0.0, signer: Path | None = None) -> dict[str, str]:
    """Headers of a site with this private key whose clock is ``ahead`` seconds wrong; ``signer`` signs in its place."""
    own, signing = (load_ssh_private_key(file.read_bytes(), None) for file in (key, signer or key))
    time = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    signature = sign_message(signing, time.encode())
    return {
        "flwr-public-key": b64encode(public_key_to_bytes(own.public_key())).decode(),
        "flwr-timestamp": time,
        "flwr-signature": b64encode(signature).decode(),
    }
