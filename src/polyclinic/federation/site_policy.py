"""A site's policy: what may leave the site, in a file that only the site writes.

It is read again for every request, and checked at the site: nothing that the server sends can change it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import isnan, nan
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field, ValidationError

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.memory import physical_memory
from polyclinic.core.wording import MB, first_finding
from polyclinic.evaluation.aggregate import Row, case_values, mean
from polyclinic.recipe import Positive, Section

if TYPE_CHECKING:
    from polyclinic.components.base import Component
    from polyclinic.components.updates.privacy import Privacy
    from polyclinic.exchange.declarations import Shared
    from polyclinic.exchange.messages import Evaluation

Patterns = tuple[str, ...]
DELTA = 1e-5  # the site's own: a delta that the server chose could make any epsilon small


class Policy(Section):
    """The keys of ``policy.toml``; with the defaults a federation can run and no value of a single case leaves."""

    methods: Patterns = Field(
        ("*",), description="methods that may run here, as names or patterns such as fedavg or fedavg+*"
    )
    shared: Patterns = Field(
        ("*",),
        description="what components may share beside weights: component/tensor, or patterns such as cdpa/*; averaged "
        "images (fedmix) leave only where a pattern names their component, as fedmix/* does",
    )
    plugins: Patterns = Field((), description="modules of methods that are installed here and may be loaded")
    recipes: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = Field(
        (), description="fingerprints of the recipes that may run here (polyclinic site approve); empty: any"
    )
    minimum_images: Annotated[int, Field(ge=1, strict=True)] = Field(
        5,
        description="smallest number of images (or cases) behind anything that leaves, and of cases by which two sets "
        "that the site answers for may differ",
    )
    per_case_metrics: Literal["no", "numbered", "named"] = Field(
        "no",
        description="no: mean, standard deviation and count; numbered: a value a case without its name; named: with it",
    )
    split: Literal["recipe", "own"] = Field(
        "recipe",
        description="recipe: cases are drawn for training, validation, test and label budgets by the recipe's seed; "
        "own: by a secret of the site, so that every run uses the same cases whatever its seed",
    )
    max_mb_per_round: Positive | None = Field(None, description="most megabytes (10^6 bytes) that leave in a round")
    max_steps_per_round: Annotated[int, Field(ge=1, strict=True)] = Field(
        100_000, description="most optimiser steps that one request may ask for"
    )
    max_mb_received: Positive = Field(
        2000, description="most megabytes (10^6 bytes) of one request of the server, when it is unpacked"
    )
    max_seconds_per_round: Positive = Field(
        86_400, description="most seconds that one request may take; the worker is then ended"
    )
    max_memory_gb: Positive | None = Field(
        None, description="most memory of the worker, in 10^9 bytes; by default 90 % of the machine's"
    )
    max_home_gb: Positive = Field(
        50, description="most disk of the site's home, in 10^9 bytes; prepared images and old runs make room"
    )
    keep_runs_days: Positive = Field(
        90, description="days after its last use at which a run's states are removed; logs and ledgers never are"
    )
    require_privacy: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="refuse methods without the component privacy, or with one that covers less than it says; "
        "needs max_epsilon",
    )
    max_epsilon: Positive | None = Field(
        None, description="most epsilon, at delta 1e-5, that all runs together may spend here; asks for privacy too"
    )

    @property
    def memory_bytes(self) -> float:
        """The memory that the site's worker may have."""
        return 0.9 * physical_memory() if self.max_memory_gb is None else self.max_memory_gb * 1e9


def load_policy(path: Path | None) -> Policy:
    """Read a policy file, or take the defaults where there is none."""
    if path is None:
        return Policy()
    if not path.exists():
        raise PolyclinicError(f"{path}: no such file; give the site's policy, or nothing leaves.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PolyclinicError(f"{path}: not a readable TOML file ({error}); mend it, or nothing leaves.") from error
    for key in table:
        if key not in Policy.model_fields:
            hint = suggestion(key, Policy.model_fields) or f"; keys of a policy: {', '.join(Policy.model_fields)}."
            raise PolyclinicError(f"{path}: unknown key '{key}'{hint}")
    try:
        policy = Policy(**table)
    except ValidationError as error:
        finding = first_finding(error)
        raise PolyclinicError(f"{path}: {finding.about(str(finding.place[0]))}; {finding.words}.") from error
    if policy.require_privacy and policy.max_epsilon is None:
        raise PolyclinicError(
            f"{path}: require_privacy = true without max_epsilon would accept any noise, however small; add "
            "max_epsilon = 10, or as much as all runs together may spend here."
        )
    return policy


def refusal_of_method(policy: Policy, method: str, declared: Mapping[str, tuple[Shared, ...]]) -> str | None:
    """Why a method may not run here, in a sentence for site and server, or ``None``."""
    if not _allowed(method, ("".join(pattern.split()) for pattern in policy.methods)):
        return f"the site's policy does not allow the method {method} (methods = {list(policy.methods)})"
    for component, tensors in declared.items():
        for tensor in tensors:
            name, cases = f"{component}/{tensor.name}", tensor.pictures_of
            # Pictures are no statistics: "*" was not written with them in mind.
            patterns = [p for p in policy.shared if cases is None or p.startswith(f"{component}/")]
            if not _allowed(name, patterns):
                return f"the site's policy does not let {name} leave ({tensor.what}) (shared = {list(policy.shared)})"
            if cases is not None and cases < policy.minimum_images:
                return (
                    f"every row of {name} would be the mean of {_images(cases)}, the site's policy asks for "
                    f"{policy.minimum_images}"
                )
    return None


def refusal_of_privacy(
    policy: Policy, components: Iterable[Component], spent: Sequence[float | None], planned: int
) -> str | None:
    """Why a method protects this site too little, or ``None``.

    ``spent`` is the noise of every update that has left in any run, ``None`` where it is unknown; ``planned`` is the
    number of updates that are to come with the method's own noise.
    """
    if not policy.require_privacy and policy.max_epsilon is None:
        return None
    from polyclinic.components.toolbox.privacy.accounting import epsilon_of

    privacy = privacy_of(components)
    if privacy is None:
        return "the site's policy asks for the component privacy, which this method does not have"
    settings, noise = privacy.settings, privacy.noise
    if settings.seeded or settings.uncovered != "refuse" or not noise:
        return (
            "the site's policy asks for privacy that is neither seeded, nor without noise, nor leaves things uncovered"
        )
    if policy.max_epsilon is None:
        return "the site's policy asks for privacy and says not how much (max_epsilon)"
    known = [one for one in spent if one is not None]
    if len(known) < len(spent):
        return (
            f"{len(spent) - len(known)} updates left this site with a noise that its ledger does not know; the site "
            "must write it into its ledger before more leaves"
        )
    would_spend = epsilon_of([*known, *[noise] * planned], DELTA)
    if would_spend > policy.max_epsilon:
        return (
            f"{len(known) + planned} updates would spend an epsilon of {would_spend:.3g} at delta {DELTA:g}, over all "
            f"runs; the site's policy allows {policy.max_epsilon:g} (max_epsilon)"
        )
    return None


def privacy_of(components: Iterable[Component]) -> Privacy | None:
    """The component privacy of a method, if it has it."""
    from polyclinic.components.updates.privacy import Privacy

    return next((component for component in components if isinstance(component, Privacy)), None)


def refusal_of_plugins(policy: Policy, plugins: Iterable[str]) -> str | None:
    """Why a recipe's plugins may not be loaded here, or ``None``."""
    for plugin in plugins:
        if plugin not in policy.plugins:
            return (
                f"the site's policy does not allow the plugin {plugin} (plugins = {list(policy.plugins)}); "
                "code is never sent, a plugin must be installed and named by the site"
            )
    return None


def refusal_of_recipe(policy: Policy, sha256: str) -> str | None:
    """Why a recipe may not run here, or ``None``; ``sha256`` is its fingerprint, empty where it has none."""
    if not policy.recipes or sha256 in policy.recipes:
        return None
    return (
        f"the site runs approved recipes only, and this one is not ({f'sha256 {sha256}' if sha256 else 'unreadable'}); "
        "the site can look at it and approve it: polyclinic site approve RECIPE --policy FILE"
    )


def refusal_of_counts(policy: Policy, images: int, by_class: Mapping[str, int], rows: bool) -> str | None:
    """Why too few images stand behind an update, or ``None``.

    ``by_class`` counts the training images of each class; it matters where ``rows`` of classes (prototypes) leave.
    """
    if images < policy.minimum_images:
        return f"the update rests on {_images(images)}, the site's policy asks for {policy.minimum_images}"
    few = {name: count for name, count in by_class.items() if 0 < count < policy.minimum_images}
    if rows and few:
        name, count = min(few.items(), key=lambda item: item[1])
        return (
            f"a prototype of class '{name}' would rest on {_images(count)}, the site's policy asks for "
            f"{policy.minimum_images}"
        )
    return None


def _images(number: int) -> str:
    return "1 image" if number == 1 else f"{number} images"


def refusal_of_bytes(policy: Policy, number: int) -> str | None:
    """Why a message is too large, or ``None``."""
    limit = policy.max_mb_per_round
    if limit is not None and number > limit * MB:
        return f"{number / MB:.1f} MB would leave this round, the site's policy allows {limit:g} (max_mb_per_round)"
    return None


def limited(policy: Policy, evaluation: Evaluation, cases: int | None = None) -> Evaluation:
    """An evaluation as it may leave: the values of cases only if the policy says so, and none of too few images.

    ``cases`` is the number of cases that were scored: a mean over the slices of one case is a value of that case.
    """
    from polyclinic.exchange.messages import Evaluation

    if 0 < evaluation.images < policy.minimum_images:
        return _held_back(policy, evaluation, f"{evaluation.images} images")
    if policy.per_case_metrics == "no" and cases is not None and 0 < cases < policy.minimum_images:
        return _held_back(policy, evaluation, f"{cases} cases")
    if policy.per_case_metrics == "named" or not evaluation.rows:
        return evaluation
    plain = (evaluation.site, evaluation.round, evaluation.images, evaluation.dice)
    if policy.per_case_metrics == "numbered":
        return Evaluation(*plain, rows=_numbered(evaluation.rows))
    all_stats = statistics(evaluation.rows)
    stats = {name: numbers for name, numbers in all_stats.items() if numbers["count"] >= policy.minimum_images}
    # A mean over all classes gives back what a class's own mean holds back.
    hidden = {name.partition("/")[0] for name in all_stats.keys() - stats.keys()}
    stats = {name: numbers for name, numbers in stats.items() if name not in hidden}
    if not stats:
        most = max(int(numbers["count"]) for numbers in all_stats.values())
        return _held_back(policy, evaluation, f"{most} cases")
    dice = nan if "dice" in hidden else evaluation.dice
    return Evaluation(evaluation.site, evaluation.round, evaluation.images, dice, stats=stats)


def _held_back(policy: Policy, evaluation: Evaluation, what: str) -> Evaluation:
    from polyclinic.exchange.messages import Evaluation

    note = f"scores of {what} are held back, the policy asks for {policy.minimum_images}"
    return Evaluation(evaluation.site, evaluation.round, 0, nan, note=note)


def statistics(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation over cases and number of cases of each metric, as a table of one site shows them."""
    return {name: _describe(values) for name, values in case_values(cast(list[Row], rows)).items()}


def _describe(values: list[float]) -> dict[str, float]:
    known = [value for value in values if not isnan(value)]
    middle = mean(known)
    spread = stdev(known, middle) if len(known) > 1 else nan
    return {"mean": middle, "sd": spread, "count": len(known)}


def _numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with numbers in place of the names of cases and images, counted in the order of the rows."""
    cases: dict[str, str] = {}
    images: dict[tuple[str, str], str] = {}
    for row in rows:
        cases.setdefault(row["case"], f"case-{len(cases) + 1}")
        images.setdefault((row["case"], row["image"]), f"image-{len(images) + 1}")
    return [{**row, "case": cases[row["case"]], "image": images[row["case"], row["image"]]} for row in rows]


def _allowed(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches a pattern; only * and ? are special, a method's settings may hold lists in brackets."""
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)
