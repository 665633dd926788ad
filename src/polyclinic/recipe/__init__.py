"""The recipe: what a user writes, validated, with a default for everything but the federation."""

from __future__ import annotations

from polyclinic.recipe.augmentation import AugmentationSettings, IntensitySettings, StrongSettings
from polyclinic.recipe.data import DataSettings
from polyclinic.recipe.engine import EngineSettings, TrackingSettings
from polyclinic.recipe.evaluation import EvaluationSettings, ProtocolSettings
from polyclinic.recipe.network import NetworkSettings, PretrainedSettings, UNetSettings, ViTSettings
from polyclinic.recipe.recipe import Recipe
from polyclinic.recipe.section import Fraction, Positive, Section
from polyclinic.recipe.training import PolicySettings, TrainingSettings

__all__ = [
    "AugmentationSettings",
    "DataSettings",
    "EngineSettings",
    "EvaluationSettings",
    "Fraction",
    "IntensitySettings",
    "NetworkSettings",
    "PolicySettings",
    "Positive",
    "PretrainedSettings",
    "ProtocolSettings",
    "Recipe",
    "Section",
    "StrongSettings",
    "TrackingSettings",
    "TrainingSettings",
    "UNetSettings",
    "ViTSettings",
]
