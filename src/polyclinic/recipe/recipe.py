"""A whole recipe. Nothing heavy is imported here, so that a wrong key is reported at once."""

from __future__ import annotations

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from polyclinic.recipe.augmentation import AugmentationSettings, StrongSettings
from polyclinic.recipe.data import DataSettings
from polyclinic.recipe.engine import EngineSettings, TrackingSettings
from polyclinic.recipe.evaluation import EvaluationSettings, ProtocolSettings
from polyclinic.recipe.network import NetworkSettings, UNetSettings
from polyclinic.recipe.section import Section
from polyclinic.recipe.training import PolicySettings, TrainingSettings


class Recipe(Section):
    """Everything that one run depends on."""

    federation: str
    method: str = "fedavg"
    seed: int = Field(0, ge=0)
    plugins: tuple[str, ...] = Field(
        (),
        description="Python files or modules that register methods, components, metrics, file formats, networks or "
        "engines of your own",
    )
    data: DataSettings = DataSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    strong: StrongSettings = StrongSettings()
    network: SerializeAsAny[NetworkSettings] = UNetSettings()
    training: TrainingSettings = TrainingSettings()
    protocol: ProtocolSettings = ProtocolSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    policies: PolicySettings = PolicySettings()
    engine: EngineSettings = EngineSettings()
    tracking: TrackingSettings = TrackingSettings()

    @field_validator("method")
    @classmethod
    def _one_plain_line(cls, method: str) -> str:
        # The values in an expression are read as TOML, in which a line's end and # have a meaning that spaces have not.
        if not method.isprintable() or "#" in method:
            raise ValueError("write the method on one line, of letters, numbers, signs and spaces, without #")
        return method

    @model_validator(mode="after")
    def _reaches_the_tested_rounds(self) -> Recipe:
        late = [number for number in self.evaluation.rounds if number > self.training.rounds]
        if late:
            raise ValueError(
                f"evaluation.rounds names round {late[0]}, and training.rounds = {self.training.rounds}; train "
                "longer or name earlier rounds ([] for none)"
            )
        return self
