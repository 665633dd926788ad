"""The recipe: what a user writes, validated, with a default for everything but the federation."""

from __future__ import annotations

from polyclinic.recipe.settings import (
    AugmentationSettings,
    DataSettings,
    EngineSettings,
    EvaluationSettings,
    IntensitySettings,
    NetworkSettings,
    PolicySettings,
    ProtocolSettings,
    Recipe,
    Section,
    StrongSettings,
    TrackingSettings,
    TrainingSettings,
)

__all__ = [
    "AugmentationSettings",
    "DataSettings",
    "EngineSettings",
    "EvaluationSettings",
    "IntensitySettings",
    "NetworkSettings",
    "PolicySettings",
    "ProtocolSettings",
    "Recipe",
    "Section",
    "StrongSettings",
    "TrackingSettings",
    "TrainingSettings",
]
