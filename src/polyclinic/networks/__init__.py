"""Segmentation networks: what every network offers, and how one is built from a recipe."""

from __future__ import annotations

from polyclinic.networks.base import Features, SegmentationNetwork, load_weights, parameter_count
from polyclinic.networks.registry import NETWORKS, build_network, network

__all__ = ["NETWORKS", "Features", "SegmentationNetwork", "build_network", "load_weights", "network", "parameter_count"]
