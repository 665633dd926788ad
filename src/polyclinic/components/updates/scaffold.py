"""SCAFFOLD: control variates that take the drift out of local steps.

Paper: Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, ICML 2020, algorithm 1.
``c_m`` estimates the gradient of site ``m``, ``c`` that of the whole federation of ``N`` sites; both start at 0. With
``g`` the gradient of a batch at site ``m`` and ``S`` the sites of the round:

(1) ``w_m <- w_m - eta (g + c - c_m)``                              every local step
(2) ``c_m+ = gradient at w^r`` (option I)  or  ``c_m - c + (w^r - w_m) / (K eta)`` (option II) after ``K`` steps
(3) ``w <- w^r + eta_g mean_S (w_m - w^r)``,  ``c <- c + (|S| / N) mean_S (c_m+ - c_m)``

The mean of (3) is the method's aggregation: the paper's is ``weighted_mean(weighting=uniform)``. ``eta_g`` is applied
after any aggregation. Controls are for parameters that are trained and travel: not for buffers, which follow
``policies.buffers``, and not for layers that stay at a site (FedBN).

Departures. Option II is the mean of the batches' gradients, each weighted with its learning rate: for SGD this is (2),
without the cancellation of ``w^r - w_m`` at small rates, and it holds where (2) does not: with Adam, whose steps are no
gradients, with momentum and where gradients are clipped. ``c - c_m`` is added before the clipping, so that it is the
corrected gradient that is clipped, and ``g`` is counted before both. What components named earlier in the method added
to the gradient is a part of ``g``. Option I walks over the labelled images as they are with the recipe's loss alone.

A change that did not arrive (late, refused) is counted by nobody: the server says whose last change it has, and a site
whose change it does not have goes back to the control before. So ``c`` stays the mean of the ``c_m``, unless
``policies.skipped_rounds = "reset"`` makes a site forget its own. A change ``training.max_update_ratio`` times longer
than usual in the round is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import BuiltMethod, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.deep_supervision import supervised_loss
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import owner_number
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork, without_statistics


@component
class Scaffold(Component):
    """Corrects every local step by the difference between the federation's mean gradient and the site's own."""

    name = "scaffold"
    level = "update"
    paper = "Karimireddy et al., ICML 2020"
    equations = (
        "SCAFFOLD: w_m <- w_m - eta (g + c - c_m)",
        "SCAFFOLD options I, II: c_m+ = gradient at w^r, or c_m - c + (w^r - w_m) / (K eta)",
        "SCAFFOLD: w <- w^r + eta_g mean (w_m - w^r), c <- c + (|S| / N) mean (c_m+ - c_m)",
    )
    comes_back = (
        "the mean control variate, as large as the weights, and a number and round for each site that changed it"
    )
    _gradient: Tensor | None

    class Settings(ComponentSettings):
        """Those of the paper's experiments."""

        option: Literal["I", "II"] = Field(
            "II", description="I: a pass over the site's images at the received weights; II: the round's own gradients"
        )
        global_lr: float = Field(1.0, gt=0, description="eta_g: the server's step; 1 is the plain mean")

    def warnings(self) -> list[str]:
        """The paper's theory is about SGD with controls that are never forgotten."""
        training, sentences = self.context.training, []
        if training.optimizer != "sgd" or training.momentum:
            what = f"momentum = {training.momentum:g}" if training.optimizer == "sgd" else training.optimizer
            sentences.append(
                f"scaffold: the paper corrects the steps of plain SGD; with {what} the correction is added to the "
                "gradient before the optimiser, which is a heuristic."
            )
        if self.context.policies.skipped_rounds == "reset":
            sentences.append(
                "scaffold: policies.skipped_rounds = reset makes a site forget its control variate, which the server "
                "goes on counting; use keep."
            )
        return sentences

    def check(self, built: BuiltMethod) -> None:
        """Option I knows the recipe's loss alone."""
        replacing = [c.name for c in built.components if type(c).objective is not Component.objective]
        if self.settings.option == "I" and replacing:
            raise PolyclinicError(
                f"scaffold(option=I): {replacing[0]} replaces the supervised loss, and option I takes the gradient of "
                "the recipe's; use option=II."
            )

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """One row of numbers, as long as all controlled parameters together."""
        size = sum(p.numel() for p in self._controlled(network).values())
        return (Shared("change", (size,), "change of the site's mean gradient (its control variate)"),) if size else ()

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """The server's control, and the round of each site's change that is in it."""
        size = sum(p.numel() for p in self._controlled(network).values())
        if not size:
            return ()
        rows = (Shared(name, ("sites",), f"{name} of the changes", torch.int64) for name in ("owners", "rounds"))
        return (Shared("control", (size,), "the server's control variate"), *rows)

    def _controlled(self, network: SegmentationNetwork) -> dict[str, nn.Parameter]:
        """Parameters that are trained and travel, in one order everywhere."""
        named = dict(network.named_parameters())
        return {n: named[n] for n in sorted(named) if n in self.exchanged and named[n].requires_grad}

    # ---- site half -----------------------------------------------------------------------------------------------

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """The correction ``c - c_m`` of the round; a control that the server does not know of is taken back."""
        self._parameters = list(self._controlled(site.network).values())
        zero = torch.zeros(sum(p.numel() for p in self._parameters))
        arrived = dict(zip(shared["owners"].tolist(), shared["rounds"].tolist(), strict=True)) if shared else {}
        counted = bool(self.state) and arrived.get(owner_number(site.site)) == int(self.state["round"])
        self._control = self.state.get("control" if counted else "before", zero)
        correction = (shared.get("control", zero) - self._control).to(site.device)
        pieces = torch.split(correction, [p.numel() for p in self._parameters])
        self._correction = [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]
        self._sum = torch.zeros_like(correction)
        self._gradient = self._at_received(site) if self.settings.option == "I" else None

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        """Count the gradient, then correct it (1)."""
        if self._gradient is None:
            row = torch.cat([self._sum[:0], *(_row(p.grad, p) for p in self._parameters)])
            # In half precision a gradient may overflow; the optimiser then leaves out the step.
            self._sum.add_(torch.where(row.norm().isfinite(), row, 0.0), alpha=step.lr)
        for parameter, correction in zip(self._parameters, self._correction, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(correction)

    def share(self, site: SiteRound) -> Tensors:
        """Equation 2, and what it changes."""
        if self._gradient is None:
            new = (self._sum / site.learning_rates).cpu() if site.steps else self._control
        else:
            new = self._gradient.cpu()
        self.state = {"control": new, "before": self._control, "round": torch.tensor(site.round)}
        return {"change": new - self._control} if len(new) else {}

    def _at_received(self, site: SiteRound) -> Tensor:
        """Option I: the gradient ``(value,)`` of the recipe's loss at the received weights, the mean over images."""
        total, count = torch.zeros_like(self._sum), 0
        site.network.train()
        with without_statistics(site.network):
            for _, images, labels in site.batches(labelled=True):
                output = site.network.features(images)
                loss = supervised_loss(site.network, output, labels, self.context.training, self.context.policies)
                gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
                pairs = zip(gradients, self._parameters, strict=True)
                total += len(images) * torch.cat([_row(gradient, p) for gradient, p in pairs])
                count += len(images)
        return total / max(1, count)

    # ---- server half ---------------------------------------------------------------------------------------------

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equation 3: the server's step and its control."""
        changes = self._usual(server, {site: tensors["change"] for site, tensors in shared.items()})
        if self.settings.global_lr != 1:
            for name in server.parameters:
                old = server.previous[name]
                server.weights[name] = old + self.settings.global_lr * (server.weights[name] - old)
        if changes:
            old = self.state.get("control", torch.zeros(len(next(iter(changes.values()))), dtype=torch.float64))
            total = torch.stack(list(changes.values())).sum(0, dtype=torch.float64)
            owners, rounds = (self.state[n].tolist() if self.state else [] for n in ("owners", "rounds"))
            known = dict(zip(owners, rounds, strict=True)) | {owner_number(site): server.round for site in changes}
            self.state = {
                "control": old + total / len(server.sites),
                "owners": torch.tensor(list(known)),
                "rounds": torch.tensor(list(known.values())),
            }
        return self.state | {"control": self.state["control"].float()} if self.state else {}

    def _usual(self, server: ServerRound, changes: Tensors) -> Tensors:
        """The changes without those that are far longer than the others': the control would never forget them."""
        ratio = self.context.training.max_update_ratio
        if isinstance(ratio, str) or len(changes) < 3:
            return changes
        lengths = {site: float(change.double().norm()) for site, change in changes.items()}
        longest = ratio * median(lengths.values())
        for site in (site for site, length in lengths.items() if length > longest > 0):
            server.warn(
                f"scaffold: the change of {site}'s control variate is {lengths[site]:.3g} long, {longest / ratio:.3g} "
                f"is usual; it is left out (training.max_update_ratio = {ratio:g})."
            )
        return {site: change for site, change in changes.items() if lengths[site] <= longest or not longest}


def _row(gradient: Tensor | None, parameter: nn.Parameter) -> Tensor:
    """A gradient as ``(value,)``, zeros where there is none."""
    return torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.reshape(-1)
