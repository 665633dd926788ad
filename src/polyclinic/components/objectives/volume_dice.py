"""FSF3A's "modified" Dice loss, the ordinary soft Dice of whole volumes: FedDice, and the first part of CLSL.

Paper: FSF3A, eq. 2, for the foreground probability ``p`` and the mask ``y`` of a volume:
``L_Dice = 1 - (2 sum_ijk y p + eps) / (sum_ijk y + sum_ijk p + eps)``, the mean over the batch.

Departures: The paper's network has one sigmoid for the whole tumour. Classes here are exclusive, with a softmax: for
two classes the foreground probability is that sigmoid (of the difference of the logits); for more, the loss is the mean
over the foreground classes. The paper has ``eps`` below the fraction alone, where an empty mask costs 1 whatever is
predicted; here it is above, too, so that predicting nothing costs nothing. Its value is garbled in print; ours is 1e-5.
``policies.absent_classes = "ignore"`` leaves out classes that no mask of the batch holds. In 2D a volume is an image.

The loss of a patch without foreground is 1 whatever is predicted, but for the last 1e-5: it has no slope, and teaches
nothing about the background. ``training.dice_over = "batch"`` adds up over all patches of a batch, where it has one.

``pretrain_rounds`` is for SimCLR and SwAV, which the paper calls pre-training: the first rounds then have no supervised
loss, and the other terms of the method train alone.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from polyclinic.components.base import BuiltMethod, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.foreground import foreground, mean_over_foreground
from polyclinic.components.toolbox.segmentation_loss import SMOOTH
from polyclinic.core.errors import PolyclinicError


def dice_losses(probabilities: Tensor, truth: Tensor) -> Tensor:
    """Equation 2 of each image and class ``(batch, class)``, for maps ``(batch, class, *spatial)``."""
    overlap = (probabilities * truth).flatten(2).sum(2)
    sizes = probabilities.flatten(2).sum(2) + truth.flatten(2).sum(2)
    return 1 - (2 * overlap + SMOOTH) / (sizes + SMOOTH)


@component
class VolumeDice(Component):
    """Replaces the supervised loss by the soft Dice of the foreground, volume by volume."""

    name = "volume_dice"
    level = "objective"
    paper = "FSF3A; Milletari et al., 3DV 2016"
    equations = ("FSF3A eq. 2: 1 - (2 sum y p + eps) / (sum y + sum p + eps)",)

    class Settings(ComponentSettings):
        """The paper's loss has no settings."""

        pretrain_rounds: int = Field(0, ge=0, description="rounds at the start without it: other terms train alone")

    def check(self, built: BuiltMethod) -> None:
        """Rounds without a supervised loss need another one."""
        others = [part for part in built.components if type(part).loss is not Component.loss]
        if self.settings.pretrain_rounds and not others:
            raise PolyclinicError(
                f"volume_dice(pretrain_rounds={self.settings.pretrain_rounds}): no other component of this method has "
                "a loss to train with in those rounds; use it in a method such as fedsimclr, or leave it at 0."
            )

    def warnings(self) -> list[str]:
        """A supervised loss that never comes."""
        rounds, waits = self.context.training.rounds, self.settings.pretrain_rounds
        if waits >= rounds:
            return [f"volume_dice(pretrain_rounds={waits}): all of the {rounds} rounds train without labels."]
        return []

    def objective(self, step: Step) -> Tensor:
        """Equation 2; before its first round, a 0 that leaves every gradient to the other terms."""
        logits = step.labelled.logits
        if step.round < self.settings.pretrain_rounds:
            return logits[:0].float().sum()
        probabilities, truth = foreground(logits, step.labels, self.context.training.dice_over)
        losses = dice_losses(probabilities, truth)
        return mean_over_foreground(losses, truth.flatten(2).sum(2), self.context.policies.absent_classes)
