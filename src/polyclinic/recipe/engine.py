"""The tables ``[engine]`` and ``[tracking]`` of a recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from polyclinic.recipe.section import Positive, Section


class EngineSettings(Section):
    """Where sites run."""

    name: str = Field(
        "auto",
        description="auto (worker processes where there is room for several, else inprocess; the weights are the "
        "same), inprocess, workers, flower (processes that speak over a network), or simulation",
    )
    workers: Annotated[int, Field(ge=1)] | None = Field(
        None, description="processes that train sites side by side; by default as many as the machine has room for"
    )
    threads: int = Field(
        1, ge=1, description="threads of a process; results are bit for bit equal only for equal numbers"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    channels_last: bool = Field(
        False,
        description="weights of convolutions with the channels last in memory: faster with norm = batch or group, "
        "slower with instance; changes the last digits of results",
    )
    deadline: Positive | None = Field(
        None,
        description="flower: seconds that a site has for its part of a round; by default ten times what half of the "
        "sites took, and ten minutes at least",
    )
    gather: float = Field(
        60.0, ge=0, description="flower: seconds to wait for all sites before starting with those that are there"
    )
    grace: float = Field(
        60.0, ge=0, description="flower: seconds that a site may be away in a round before it goes on without it"
    )
    max_message_mb: Positive = Field(
        2048, description="flower: largest answer of a site that the server takes in, in MB (10^6 bytes)"
    )


class TrackingSettings(Section):
    """Optional trackers beside the run folder."""

    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = Field(
        None, description="default: MLflow's own environment variable, or a file in the run folder"
    )
