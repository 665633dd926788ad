"""FedNova's normalised averaging: what a site moved counts per step, not per round.

Paper: Wang et al., *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*, NeurIPS
2020. A site that makes more steps moves further, and in FedAvg pulls the model to its own optimum. With ``tau_m`` steps
at site ``m``, ``p_m`` its share of the samples, and ``a_m`` the sum of the weights that its optimiser gave to the
gradients of the round (the paper's ``||a_m||_1``):

(1) ``d_m = (w^r - w_m) / a_m``                            the learning rate is in ``d_m`` and cancels in (3)
(2) ``tau_eff = sum_m p_m a_m``
(3) ``w = w^r - tau_eff sum_m p_m d_m``

``a_m`` is the distance that gradients of 1 would have taken the site in steps of length 1: ``v <- rho v + 1 - eta mu
a``, ``a <- a + v``, ``tau_m`` times from ``v = a = 0``, with the recipe's momentum ``rho`` and, where the method has
the component ``proximal``, its ``mu`` and the learning rate ``eta``. That is the paper's ``tau_m`` for plain SGD,
``(tau_m - rho (1 - rho^tau_m) / (1 - rho)) / (1 - rho)`` with momentum and ``(1 - (1 - eta mu)^tau_m) / (eta mu)`` with
the proximal term. Equal steps give FedAvg.

Departures. With Adam and AdamW ``a_m = tau_m``: the paper has no ``a_m`` for them. ``eta`` is the schedule's rate in
the middle of the round. The released code takes ``tau_eff = sum_m p_m tau_m`` with a proximal term; (2) holds here. Its
server momentum is left out. Buffers are averaged with ``p_m`` by ``policies.buffers``: nothing steps them. A site
without a step moved nothing and counts as ``d_m = 0``. Steps are what a site says, and its word would stretch the step
of all: more than its samples and the recipe allow are not believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import Literal

import numpy as np
from pydantic import Field

from polyclinic.components.base import BuiltMethod, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.recipe.training import learning_rate


def distance_of_ones(steps: int, momentum: float, pull: float) -> float:
    """``a``: how far steps of length 1 go on gradients of 1; ``pull`` is ``eta mu``. Takes time like ``log(steps)``."""
    step = np.array([[1 - pull, momentum, 1], [-pull, momentum, 1], [0, 0, 1]], dtype=np.float64)  # on (a, v, 1)
    return float(np.linalg.matrix_power(step, steps)[0, 2])


@component
class FedNova(Component):
    """Averages what the sites moved per step and takes one step of the mean length; sites may make unequal numbers."""

    name = "fednova"
    level = "aggregation"
    paper = "Wang et al., NeurIPS 2020"
    equations = (
        "FedNova: d_m = (w^r - w_m) / a_m, a_m = tau_m for SGD",
        "FedNova: w = w^r - (sum_m p_m a_m) sum_m p_m d_m",
    )
    aggregates = True
    streams = True
    _mu = 0.0

    class Settings(ComponentSettings):
        """The paper's weights."""

        weighting: Literal["samples", "uniform"] = Field("samples", description="p_m: n_m / n, or 1 / M")

    def check(self, built: BuiltMethod) -> None:
        """Look for a proximal term, which makes later steps shorter."""
        self._mu = next((float(c.settings.mu) for c in built.components if c.name == "proximal"), 0.0)

    def warnings(self) -> list[str]:
        """Where ``a_m`` is not what the optimiser does."""
        training, policies = self.context.training, self.context.policies
        if training.optimizer != "sgd":
            return [
                f"fednova: the paper normalises SGD; with training.optimizer = {training.optimizer} an update is "
                "divided by its number of steps alone."
            ]
        if training.momentum and policies.optimizer_state == "keep":
            return [
                "fednova: a_m counts momentum from zero in every round, and policies.optimizer_state = keep carries it "
                "over; use reset."
            ]
        return []

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """One pass: (3) is ``w^r + tau_eff T (mean - w^r)``, the mean weighted by ``p_m / a_m``, whose sum is ``T``."""
        mean = StreamingMean(server.buffers, server.buffer_policy)
        parameters = server.parameters
        shares, distances, per_distance = 0.0, 0.0, 0.0
        for update in updates:
            share = float(update.samples) if self.settings.weighting == "samples" else 1.0
            distance = self._distance(server, update)
            moved = share / distance if distance else 0.0
            weights = dict.fromkeys(update.weights, share) | dict.fromkeys(parameters, moved)
            mean.add(update.weights, weights, update.samples)
            shares, distances, per_distance = shares + share, distances + share * distance, per_distance + moved
        result = mean.result(server.previous)
        stretch = distances * per_distance / shares**2 if shares else 1.0
        if abs(stretch - 1) > 1e-12:  # equal steps are FedAvg, without its rounding
            for name in parameters:
                old = server.previous[name].double()
                result[name] = (old + stretch * (result[name].double() - old)).to(result[name].dtype)
        return result

    def _distance(self, server: ServerRound, update: Update) -> float:
        """``a_m`` of an update."""
        training = self.context.training
        an_epoch = training.steps_per_epoch or max(1, ceil(update.samples / training.batch_size))
        steps = min(update.steps, training.local_epochs * an_epoch)
        if training.optimizer != "sgd":
            return float(steps)
        rate = learning_rate(training, (server.round + 0.5) / server.rounds, server.round + 0.5)
        distance = distance_of_ones(steps, training.momentum, rate * self._mu)
        return distance if 0 < distance < inf else float(steps)  # eta mu above 2: a training that diverges anyway
