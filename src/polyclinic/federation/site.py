"""A site: its data, its stored state, and what it does when a message comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polyclinic.components.base import Component
from polyclinic.components.rounds import SiteRound
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import generator_for, seed_for, seed_torch
from polyclinic.data.sitedata import SiteData
from polyclinic.exchange.checks import is_finite
from polyclinic.exchange.messages import Broadcast, Evaluation, Tensors, Update
from polyclinic.federation.optimizers import build_optimizer, optimizer_tensors, restore_optimizer
from polyclinic.federation.scoring import score_cases, score_quickly
from polyclinic.federation.site_store import SiteState, SiteStore
from polyclinic.federation.training import LocalTraining
from polyclinic.federation.workspace import Workspace, independent

SubmitWrite = Callable[[Callable[[], None]], None]
"""Takes a function that writes to disk, and calls it now or in the background."""


def write_now(write: Callable[[], None]) -> None:
    """The ``SubmitWrite`` without a background."""
    write()


class Site:
    """One site of a federation. Holds data and a store; borrows the process's workspace while it works."""

    def __init__(self, data: SiteData, store: SiteStore, minimum_images: int = 1) -> None:
        """``minimum_images`` is that of the site's policy, where one is in force."""
        self.name = data.site
        self.data = data
        self.store = store
        self.minimum_images = minimum_images

    def train(self, workspace: Workspace, broadcast: Broadcast, submit: SubmitWrite = write_now) -> Update:
        """One round: load the state, train, share, save the state.

        ``submit`` may write the site's state to disk while something else goes on; the default does it here.
        """
        started = time.perf_counter()
        state = self._state_for(workspace, broadcast)
        received = self._local_weights(workspace, broadcast, state.personal)
        workspace.load(received)
        components = workspace.fresh_components(state.components)
        self._open_ledgers(components)
        generator = generator_for(workspace.recipe.seed, self.name, broadcast.round, "round")
        batch_size = workspace.recipe.training.batch_size
        site = SiteRound(
            self.name, broadcast.round, workspace.network, received, self.data, workspace.device, generator, batch_size,
            minimum_images=self.minimum_images,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[workspace.device] if workspace.device.type == "cuda" else []):
            seed_torch(seed_for(workspace.recipe.seed, self.name, broadcast.round, "torch"))
            for component in components:
                component.receive(site, broadcast.shared.get(component.name, {}))
            losses, state.optimizer = self._learn(workspace, components, site, state)
            with torch.no_grad():
                shared = {c.name: plain(c.share(site)) for c in components}
        shared = {name: tensors for name, tensors in shared.items() if tensors}
        samples = self._samples(workspace)
        update = Update(self.name, broadcast.round, workspace.exchanged_weights(), samples, site.steps, shared, losses)
        for component in sorted(components, key=lambda c: c.acts_last):
            update = component.on_update(update)
        state.round, state.personal = broadcast.round, workspace.kept_weights()
        self._require_finite({**update.weights, **state.personal})
        state.components = {c.name: plain(c.state) for c in components if c.state}
        self.store.save_ledgers({c.name: plain(c.ledger) for c in components if c.ledger})
        submit(lambda: self.store.save(state))
        update.seconds = time.perf_counter() - started
        return update

    def _open_ledgers(self, components: list[Component]) -> None:
        ledgers = self.store.ledgers()
        for component in components:
            component.ledger = ledgers.get(component.name, {})

    def _learn(
        self, workspace: Workspace, components: list[Component], site: SiteRound, state: SiteState
    ) -> tuple[dict[str, float], Tensors]:
        """Train, and give back the loss terms and the optimiser's memory."""
        parameters = {n: p for n, p in workspace.network.named_parameters() if p.requires_grad}
        replaced = [optimizer for c in components if (optimizer := c.make_optimizer(parameters)) is not None]
        optimizer = replaced[0] if replaced else build_optimizer(parameters, workspace.recipe.training)
        keeps = workspace.recipe.policies.optimizer_state == "keep"
        if keeps:
            restore_optimizer(optimizer, parameters, state.optimizer)
        losses = LocalTraining(workspace, components, site, optimizer).run()
        return losses, optimizer_tensors(optimizer, parameters) if keeps else {}

    def evaluate(self, workspace: Workspace, broadcast: Broadcast, split: str, detailed: bool) -> Evaluation:
        """Score the model that this site would use: the received weights and the site's own kept ones.

        ``detailed`` gives every metric of every case (the test), otherwise only the mean Dice (the validation).
        """
        workspace.load(self.model(workspace, broadcast))
        if detailed:
            return score_cases(workspace, self.data, split, broadcast.round)
        return score_quickly(workspace, self.data, split, broadcast.round)

    def model(self, workspace: Workspace, broadcast: Broadcast) -> Tensors:
        """The site's whole model: what it scores, and what one-machine protocols test elsewhere."""
        personal: Tensors = {}
        if workspace.kept:  # else nothing of the memory is needed, and it may be large
            personal = self.store.load(before=broadcast.round + 1).personal_at(broadcast.best_round)
        return self._local_weights(workspace, broadcast, personal)

    def _state_for(self, workspace: Workspace, broadcast: Broadcast) -> SiteState:
        state = self.store.take(before=broadcast.round)
        state.note_best(broadcast.best_round)
        if workspace.recipe.policies.skipped_rounds == "reset" and state.round < broadcast.round - 1:
            state.optimizer, state.components = {}, {}
        return state

    def _local_weights(self, workspace: Workspace, broadcast: Broadcast, personal: Mapping[str, Tensor]) -> Tensors:
        return {**workspace.initial_kept, **personal, **broadcast.weights}

    def _require_finite(self, weights: Mapping[str, Tensor]) -> None:
        """A training that diverged is not remembered: the next round starts from the memory before it."""
        broken = next((name for name, tensor in weights.items() if not is_finite(tensor)), None)
        if broken is not None:
            raise RuntimeError(
                f"the training diverged: '{broken}' holds NaN or infinite values; try a lower training.lr"
            )

    def _samples(self, workspace: Workspace) -> int:
        """Training images: those with a label, and all when the method learns from the others too."""
        return len(self.data.training_indices(None if workspace.learns_unlabelled else True))


def plain(tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors as they leave or are stored: detached, on the CPU, and independent of the network's storage.

    A component may hand out the network's own tensors, what the server sent, or one tensor for both; so all are copied.
    """
    return {name: independent(tensor) for name, tensor in tensors.items()}


def require_labels(data: SiteData) -> None:
    """A site that must learn from labels and has none gets a sentence before the run starts."""
    if not len(data.training_indices(True)):
        raise PolyclinicError(
            f"Site '{data.site}' has no labelled training image and this method needs one; "
            "add labels, change the split, or leave the site out with data.sites."
        )
