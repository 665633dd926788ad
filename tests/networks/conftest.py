"""The encoder ``tiny`` for every test of networks."""

from __future__ import annotations

from tiny_encoders import tiny_encoder, weights_file  # noqa: F401 (fixtures)
