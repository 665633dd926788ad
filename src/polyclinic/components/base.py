"""The component contract: one published method, or one part of it, with site half and server half in one class.

Every hook is optional; the base class does nothing. See ``docs/architecture.md`` for where each hook sits in a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.optim import Optimizer

from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.data.federation import Task
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork
from polyclinic.recipe import PolicySettings, TrainingSettings

if TYPE_CHECKING:
    from polyclinic.data.sitedata import SiteData

Level = Literal["image", "feature", "objective", "aggregation", "update"]


class ComponentSettings(BaseModel):
    """Base of every component's settings: frozen, strict about unknown keys, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Context:
    """What a component may know when it is built: the same at every site and at the server."""

    task: Task
    training: TrainingSettings = field(default_factory=TrainingSettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    seed: int = 0
    unseen_sites: bool = False
    image_size: tuple[int, ...] | None = None
    """Spatial size of what the network trains on, where the recipe fixes one."""
    value_range: tuple[float, float] | None = (0.0, 1.0)
    """What the intensities of all images lie between, if there are bounds."""
    keeps_style: bool = True
    """Whether images may still differ in their mean and deviation."""
    fixed_views: bool = False
    """Whether the weak view of an unlabelled image is always the image as it is."""
    norm_takes_style: bool = False
    """Whether the network's norm takes the mean and deviation out of every image's maps."""


@dataclass(frozen=True)
class BuiltMethod:
    """A method when all of it is built: what a component may look at before it agrees to take part."""

    name: str
    pooled: bool
    """Whether all images are in one place."""
    network: SegmentationNetwork
    components: Sequence[Component]
    exchanged: frozenset[str]
    """Names of the weights that leave a site."""
    declared: Mapping[str, tuple[Shared, ...]]
    """What each component shares beside the weights."""


@dataclass(frozen=True)
class Aligned:
    """A place in the network where a component makes the features of all sites alike, for reports to look at.

    With a ``module`` at the tap, what goes into it is before and what comes out is after. Without one the alignment is
    in the weights: the tap's map in another method's network is before, and in this one's after. ``by_class`` says that
    the features of each class are drawn together, and not those of whole images.
    """

    tap: str
    module: nn.Module | None = None
    by_class: bool = False


@dataclass
class Component:
    """Base class of all components.

    A site's instance lives for one round and the server's for one run. What must live longer goes into ``state``
    (named tensors): the site's is written to the site's disk, the server's into the checkpoint. Attributes set by
    ``install`` (such as references to modules) are there in every round.
    """

    settings: Any
    context: Context
    state: Tensors = field(default_factory=dict)
    ledger: Tensors = field(default_factory=dict)
    """A site's named tensors that are never taken back: on its disk before the update leaves, and still there when a
    killed round is repeated or a policy resets ``state``. For secrets and for counts of what has left."""
    exchanged: frozenset[str] = frozenset()
    """Names of the weights that leave a site; known when all components are installed, before ``leaves``."""

    name: ClassVar[str]
    level: ClassVar[Level]
    paper: ClassVar[str] = ""
    equations: ClassVar[tuple[str, ...]] = ()
    Settings: ClassVar[type[BaseModel]] = ComponentSettings
    comes_back: ClassVar[str] = ""
    """What every site receives of the others beside weights, in words, if ``combine`` broadcasts anything."""
    strength: ClassVar[str | None] = None
    """The setting whose zero switches the component off, if there is one."""
    aggregates: ClassVar[bool] = False
    streams: ClassVar[bool] = False
    """An aggregating component that looks at every update once, so that memory does not grow with the sites."""
    wants_unlabelled: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    """Calls ``step.recompute`` in ``on_gradients``; runs before components that add to the gradients."""
    acts_last: ClassVar[bool] = False
    """Its ``on_update`` comes after those of all other components, wherever the method names it."""

    rests_on_last_epoch: ClassVar[bool] = False
    """What it shares is a mean over the images of the last local epoch; a site's policy asks for enough of them."""

    @property
    def uses_unlabelled(self) -> bool:
        """Whether unlabelled images are drawn for it: it wants them, and its strength is not zero."""
        return self.wants_unlabelled and (self.strength is None or bool(getattr(self.settings, self.strength)))

    @property
    def depends_on_rounds(self) -> bool:
        """Whether ``training.rounds`` or ``step.progress`` changes what it does, so that a longer run is another run.

        ``polyclinic run --resume`` then refuses another number of rounds.
        """
        return False

    # ---- build time, both halves ---------------------------------------------------------------------------------

    def install(self, network: SegmentationNetwork) -> None:
        """Put modules into the network's taps or extras."""

    def check(self, built: BuiltMethod) -> None:
        """Refuse, with a ``PolyclinicError``, a method or network that it cannot work with; all of it is built."""

    def warnings(self) -> list[str]:
        """Sentences about settings that make little sense together, or with which no gain is to be expected."""
        return []

    def used_equations(self) -> tuple[str, ...]:
        """The equations that these settings leave in use, for ``polyclinic explain``."""
        return self.equations

    def keeps(self, name: str) -> bool:  # noqa: ARG002
        """Whether the weight of this name never leaves the site."""
        return False

    def sets(self, name: str) -> bool:  # noqa: ARG002
        """Whether the server half sets this weight in ``combine``; it then travels under any policy for buffers."""
        return False

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """Declare what ``share`` returns."""
        return ()

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """Declare what ``combine`` sends to the sites, all of it or nothing; a site elsewhere refuses anything else.

        A name ``x/*`` stands for one tensor ``x/NUMBER`` of each site.
        """
        return ()

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """Where it makes the features of sites alike, if that is what it is for: a report shows before and after."""
        return ()

    # ---- site half, in the order of a round ----------------------------------------------------------------------

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """Start of the round: the received weights are in the network, ``shared`` came from ``combine``."""

    def make_optimizer(self, parameters: dict[str, nn.Parameter]) -> Optimizer | None:  # noqa: ARG002
        """An optimiser of the component's own instead of the recipe's."""
        return None

    def on_images(self, step: Step) -> None:
        """Before the network: change ``step.images``, ``step.labels``, ``step.strong``."""

    def objective(self, step: Step) -> Tensor | None:  # noqa: ARG002
        """Replace the recipe's supervised loss; at most one component of a method does this."""
        return None

    def loss(self, step: Step) -> dict[str, Tensor]:  # noqa: ARG002
        """Extra loss terms by name, already weighted; they are added and logged."""
        return {}

    def on_gradients(self, step: Step) -> None:
        """Between backward and the optimiser's step."""

    def after_step(self, step: Step) -> None:
        """After the optimiser's step."""

    def after_epoch(self, step: Step) -> None:
        """After the last step of a local epoch."""

    def share(self, site: SiteRound) -> Tensors:  # noqa: ARG002
        """End of the round: named tensors that leave, exactly as declared by ``leaves``."""
        return {}

    def pictures(self, data: SiteData) -> Sequence[Sequence[int]]:  # noqa: ARG002
        """Rows of the images behind each picture (``Shared.pictures_of``) that may leave in any round of a run.

        A site elsewhere compares them with those of earlier runs: two means that overlap in part can be subtracted.
        """
        return ()

    def on_update(self, update: Update) -> Update:
        """Last thing before the update leaves: noise, clipping, compression."""
        return update

    # ---- server half ---------------------------------------------------------------------------------------------

    def screen(self, server: ServerRound, updates: list[Update]) -> list[Update]:  # noqa: ARG002
        """What is aggregated in place of the accepted updates, for any aggregator: clipping, for one.

        A class that has this makes the server collect the round's updates, also for an aggregator that ``streams``.
        What components share goes to ``combine`` as it came. Updates are replaced, never changed in place.
        """
        return updates

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """New global weights. ``updates`` can be walked through once if the class ``streams``, else it is a list."""
        raise NotImplementedError(f"{self.name} does not aggregate")

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:  # noqa: ARG002
        """What is broadcast next round, from what each site shared.

        ``server.weights`` holds the new global weights; a component may set entries of its own modules there.
        """
        return {}

    def unseen_weights(self, server: ServerRound) -> Tensors:  # noqa: ARG002
        """Values of kept weights for a site that never took part; empty if there are none."""
        return {}

    def summary(self, events: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ARG002
        """Plain data for ``summary.json``, under the component's name, from the record of all rounds."""
        return {}
