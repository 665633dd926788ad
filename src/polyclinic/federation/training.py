"""Local training: the inside of a round at a site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyclinic.components.base import Component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.deep_supervision import supervised_loss
from polyclinic.data.batches import steps_per_epoch
from polyclinic.data.deformation import Deformation
from polyclinic.federation.drawn_images import batches_read_ahead, step_generator, wanted_steps
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe.training import learning_rate


def half_precision(amp: str, device: torch.device) -> torch.dtype | None:
    """The 16-bit type that ``training.amp`` asks for; ``auto``: on a GPU bfloat16 if it has it, else float16."""
    if amp == "bfloat16":
        return torch.bfloat16
    if amp == "off" or device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


class LocalTraining:
    """Runs the local epochs of one site and one round, and calls the components' hooks."""

    def __init__(
        self, workspace: Workspace, components: list[Component], site: SiteRound, optimizer: Optimizer
    ) -> None:
        self.workspace, self.components, self.site, self.optimizer = workspace, components, site, optimizer
        self.settings = workspace.recipe.training
        self.unlabelled = workspace.learns_unlabelled
        # A second backward pass starts from cleared gradients, and would wipe out what another component has added.
        self.gradient_order = sorted(components, key=lambda component: not component.recomputes)
        self.parameters = [p for p in workspace.network.parameters() if p.requires_grad]
        self.half = half_precision(self.settings.amp, workspace.device)
        # A fresh scaler each round: its state then never has to cross a restart. It starts low, because a site with few
        # steps has none to waste on finding a scale that does not overflow.
        self.scaler = torch.amp.GradScaler(workspace.device.type, init_scale=2**10, enabled=self.half is torch.float16)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = defaultdict(int)

    def run(self) -> dict[str, float]:
        """Train and return the mean of every loss term."""
        self.workspace.network.train()
        for epoch in range(self.settings.local_epochs):
            step = None
            for step in self._steps(epoch):
                self._train(step)
            if step is not None:
                self._tell("after_epoch", step)
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}

    def _steps(self, epoch: int) -> Iterator[Step]:
        """Draw the epoch's batches, augment them, and describe each as a step."""
        site, settings = self.site, self.settings
        labelled = site.data.training_indices(True)
        unlabelled = site.data.training_indices(False) if self.unlabelled else None
        size, wanted = settings.batch_size, wanted_steps(self.workspace, site.data)
        total = steps_per_epoch(len(labelled), 0 if unlabelled is None else len(unlabelled), size, wanted)
        for index, (rows, others) in enumerate(batches_read_ahead(self.workspace, site.data, site.round, epoch)):
            generator = step_generator(self.workspace, site.site, site.round, epoch, index)
            done = (epoch + index / total) / settings.local_epochs
            progress = (site.round + done) / settings.rounds
            rate = learning_rate(settings, progress, site.round + done)
            images, labels = self._load(rows, generator) if len(rows) else self._nothing(others)
            images, labels = self.workspace.augmentation(images, labels, generator)
            step = Step(
                site,
                self.workspace.network, images, labels, generator, site.round, epoch, index,
                epoch == settings.local_epochs - 1, progress, rate, indices=rows,
            )  # fmt: skip
            if self.unlabelled and len(others):
                self._add_views(step, others)
            yield step

    def _load(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        settings, data = self.workspace.recipe.data, self.site.data.images
        if settings.patch is None:
            images, labels = data.batch(rows)
        else:
            images, labels = data.patches(rows, settings.patch, generator, foreground=settings.foreground)
        if self.workspace.device.type == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        return images.to(self.workspace.device, non_blocking=True), labels.to(self.workspace.device, non_blocking=True)

    def _nothing(self, others: Tensor) -> tuple[Tensor, Tensor]:
        """An empty labelled batch, of the size that the unlabelled images have."""
        image, label = self.site.data.images.batch(others[:1])
        spatial = self.workspace.recipe.data.patch or tuple(image.shape[2:])
        images, labels = image.new_empty(0, image.shape[1], *spatial), label.new_empty(0, *spatial)
        return images.to(self.workspace.device), labels.to(self.workspace.device)

    def _add_views(self, step: Step, rows: Tensor) -> None:
        """Weak view: geometry alone. Strong view: the same geometry, then intensity changes."""
        images, _ = self._load(rows, step.generator)
        moves = self.workspace.recipe.strong.geometry
        step.deformation = (
            self.workspace.augmentation.draw(images.shape, step.generator, images.device)
            if moves
            else Deformation(images.dim() - 2)
        )
        step.weak = step.deformation.apply(images)
        step.strong = self.workspace.strong.intensity(step.weak, step.generator)
        step.unlabelled_indices = rows

    def _train(self, step: Step) -> None:
        """One optimiser step."""
        self._tell("on_images", step)
        step.recompute = lambda: self._gradients_again(step)
        for group in self.optimizer.param_groups:
            group["lr"] = step.lr
        self._gradients(step)
        self.scaler.unscale_(self.optimizer)
        for component in self.gradient_order:
            component.on_gradients(step)
        if self.settings.clip_gradients is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_gradients)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.site.steps += 1
        self.site.learning_rates += step.lr
        self._tell("after_step", step)
        self._note(step)
        # Step and recompute hold each other; without this the features would wait for the garbage collector.
        del step.recompute, step.output

    def _gradients(self, step: Step) -> Tensor:
        """Forward, all loss terms, backward into cleared gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            step.output = step.network.features(step.inputs)
            step.losses = self._losses(step)
            total = torch.stack(list(step.losses.values())).sum() if step.losses else None
        if total is None or not total.requires_grad:
            raise RuntimeError("no loss: the batch has neither labels nor a term for unlabelled images")
        self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
        return total.detach()

    def _gradients_again(self, step: Step) -> Tensor:
        """The same after ``on_gradients`` began, when the scaler counts its work on this step as done."""
        total = self._gradients(step)
        if self.scaler.is_enabled():
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            for gradient in gradients:
                gradient.mul_(1 / self.scaler.get_scale())
            # The scaler has judged the first pass alone; an overflow in this one must not reach the weights either.
            finite = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).isfinite().all()
            for gradient in gradients:
                gradient.copy_(torch.where(finite, gradient, 0.0))
        return total

    def _losses(self, step: Step) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        if len(step.images):
            own = [term for term in (c.objective(step) for c in self.components) if term is not None]
            losses["segmentation"] = self._supervised(step, own[0] if own else None)
        for component in self.components:
            terms = component.loss(step)
            if losses.keys() & terms.keys():
                name = min(losses.keys() & terms.keys())
                raise ValueError(f"two loss terms are called '{name}', the second from {component.name}; rename one")
            losses |= terms
        return losses

    def _supervised(self, step: Step, own: Tensor | None) -> Tensor:
        """The recipe's loss, or that of a component, with those of auxiliary classifiers."""
        policies = self.workspace.recipe.policies
        return supervised_loss(step.network, step.labelled, step.labels, self.settings, policies, own)

    def _precision(self) -> AbstractContextManager[None]:
        return nullcontext() if self.half is None else torch.autocast(self.workspace.device.type, self.half)

    def _tell(self, hook: str, step: Step) -> None:
        for component in self.components:
            getattr(component, hook)(step)

    @torch.no_grad()
    def _note(self, step: Step) -> None:
        """Add up the terms on the device; reading a number each step would stall a GPU."""
        for name, value in step.losses.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] += 1
