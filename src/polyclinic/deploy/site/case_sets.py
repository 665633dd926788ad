"""The sets of cases that a site has answered for, so that two answers cannot be subtracted to reveal a single case.

A server chooses seeds, shares and label budgets. The difference of two updates, or of two mean scores, over sets that
differ in one case is about that case. So a set is refused that differs in fewer than ``minimum_images`` cases from one
of the same kind that was answered for before, in whatever run; the same set again tells nothing new and is free. Means
of pictures are exact, so a group of cases behind one must be that of before, or share no case with any.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_private
from polyclinic.data.imageset import Sample
from polyclinic.data.sitedata import SiteData
from polyclinic.deploy.site.admission import RefusedError
from polyclinic.federation.drawn_images import drawn_rows
from polyclinic.federation.workspace import Workspace

_LARGEST_FILE = 64 * 2**20  # bytes
_HALF = 16  # hexadecimal digits of a case's mark, followed by as many of the mark of its images and slices
_KINDS = {
    "training": "training cases",
    "labelled": "labelled training cases",
    "drawn": "training cases that a round draws",
    "drawn-labelled": "labelled training cases that a round draws",
    "scored": "scored cases",
}
_PICTURES = "pictures"
_DRAW_ALL = "let a round draw all cases of the site: give training.steps_per_epoch a larger number, or leave it out"
_RESET = (
    "the hospital can remove case_sets.json from the site's home, after which the site has forgotten what it answered "
    "for, and answers of before and after can be subtracted"
)

Sets = dict[str, frozenset[str]]
"""Sets of marks, one a case, by the kind of use."""
Groups = Sequence[frozenset[str]]
"""Sets of marks, one a picture."""


class CaseSets:
    """The remembered sets in one private file; cases are in it as HMAC-SHA-256 with the site's own secret."""

    def __init__(self, file: Path, secret: bytes) -> None:
        self.file, self.secret = file, secret

    def of_training(self, workspace: Workspace, data: SiteData, round_number: int) -> Sets:
        """All training cases, those with labels, and what a round draws of both: components may walk over all."""
        samples = data.images.samples
        labelled, others = drawn_rows(workspace, data, round_number)

        def marks(rows: Iterable[int]) -> frozenset[str]:
            return self._marks(samples[row] for row in rows)

        return {
            "training": marks(data.training_indices().tolist()),
            "labelled": marks(data.training_indices(True).tolist()),
            "drawn": marks(labelled | others),
            "drawn-labelled": marks(labelled),
        }

    def of_scores(self, samples: Mapping[str, Iterable[Sample]]) -> Sets:
        """The cases that an evaluation scores, by class where it has means over some of them alone.

        Those of validation and test can be subtracted from one another.
        """
        return {f"scored {name}".strip(): self._marks(scored) for name, scored in samples.items() if scored}

    def of_pictures(self, workspace: Workspace, data: SiteData) -> Groups:
        """The cases behind each picture that the method lets out."""
        samples = data.images.samples
        return [
            self._marks(samples[row] for row in group)
            for component in workspace.components
            for group in component.pictures(data)
        ]

    def check_pictures(self, groups: Groups) -> None:
        """Refuse a group that has a case of one whose mean left before, unless it is that same group.

        Of two means over groups that overlap in part the difference is about the few cases that are in one of them
        alone; and of many means single images can be solved for. Groups of one method never share an image.
        """
        earlier = set(self._read().get(_PICTURES, ()))
        known = {mark[:_HALF] for group in earlier for mark in group}
        for group in groups:
            if group not in earlier and known & {mark[:_HALF] for mark in group}:
                raise RefusedError(
                    f"a mean of pictures of {len(group)} cases would overlap with an earlier one of other cases, and "
                    "single pictures can be computed from such means; ask with the images, seed, split, folds and "
                    'label budget of before, or let the site write split = "own" into its policy'
                )

    def check(self, sets: Sets, minimum: int) -> None:
        """Refuse sets that differ from a remembered one in at least one and fewer than ``minimum`` cases."""
        remembered = self._read()
        for kind, marks in sets.items():
            for earlier in remembered.get(kind, ()):
                different = {mark[:_HALF] for mark in marks ^ earlier}
                if 0 < len(different) < minimum:
                    raise RefusedError(_sentence(kind, len(marks), len(earlier), len(different), minimum))

    def check_next_round(self, workspace: Workspace, data: SiteData, sets: Sets, number: int, minimum: int) -> None:
        """Refuse a round of which the next would have to be refused because it draws nearly the same cases.

        Else a site would train one round, and then neither this run nor one that draws all cases.
        """
        if number + 1 >= workspace.recipe.training.rounds:
            return
        following = self.of_training(workspace, data, number + 1)
        for kind, every in (("drawn", "training"), ("drawn-labelled", "labelled")):
            different = {mark[:_HALF] for mark in sets[kind] ^ following[kind]}
            if 0 < len(different) < minimum:
                raise RefusedError(
                    f"the {len(sets[kind])} of {len(sets[every])} {_KINDS[every]} that this round draws and those of "
                    f"the next would differ in {len(different)}, and the site's policy asks for {minimum} "
                    f"(minimum_images); {_DRAW_ALL}"
                )

    def remember(self, sets: Sets, pictures: Groups = ()) -> None:
        """Add sets, and groups behind pictures, to the file, before what rests on them leaves."""
        remembered = self._read()
        used = [*sets.items(), *((_PICTURES, group) for group in pictures)]
        new = [(kind, marks) for kind, marks in used if marks not in remembered.get(kind, ())]
        if not new:
            return
        for kind, marks in new:
            remembered.setdefault(kind, []).append(marks)
        table = {kind: ["".join(sorted(marks)) for marks in known] for kind, known in remembered.items()}
        content = json.dumps({"secret": self._mark("secret"), "sets": table}).encode()
        if len(content) > _LARGEST_FILE:
            raise RefusedError(f"the site has no room for remembering more sets of cases; {_RESET}")
        write_private(self.file, content)

    def _read(self) -> dict[str, list[frozenset[str]]]:
        if not self.file.exists():
            return {}
        try:
            table = json.loads(self.file.read_bytes())
            sets, known = dict(table["sets"]), str(table["secret"])
            remembered = {str(kind): [_split(text) for text in texts] for kind, texts in sets.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PolyclinicError(
                f"{self.file}: cannot be read ({type(error).__name__}), so nothing leaves; restore it from a copy, or "
                f"else {_RESET}."
            ) from error
        if not hmac.compare_digest(known, self._mark("secret")):
            raise PolyclinicError(
                f"{self.file}: was written with another secret than that of {self.file.parent / 'mark.secret'}, so "
                f"nothing leaves; restore both from one copy, or else {_RESET}."
            )
        return remembered

    def _marks(self, samples: Iterable[Sample]) -> frozenset[str]:
        """A mark for each case, of its name and of what is used of it: one more slice is something new, too."""
        used: dict[str, set[tuple[str, int]]] = {}
        for sample in samples:
            slice_index = -1 if sample.slice_index is None else sample.slice_index
            used.setdefault(sample.case, set()).add((sample.name, slice_index))
        return frozenset(
            self._mark("case", case)[:_HALF] + self._mark("images", json.dumps(sorted(parts)))[:_HALF]
            for case, parts in used.items()
        )

    def _mark(self, *words: str) -> str:
        return hmac.new(self.secret, "\0".join(words).encode(errors="surrogateescape"), "sha256").hexdigest()


def scored_samples(workspace: Workspace, data: SiteData, split: str) -> dict[str, list[Sample]]:
    """The images of a split that count in its scores, under "": with ``policies.empty_masks = "ignore"`` not those
    without a mask, and then also by the name of each class, because its mean is over the images that have it.

    Else a server could ask for the mean of ten images of which one has a mask, which is the value of that one.
    """
    rows = data.labelled_indices(split).tolist()
    if workspace.recipe.policies.empty_masks != "ignore":
        return {"": [data.images.samples[row] for row in rows]}
    by_class: dict[str, list[Sample]] = {name: [] for name in ("", *workspace.task.judged)}
    for row in rows:
        present = set(torch.unique(data.images.batch(torch.tensor([row]))[1]).tolist())
        judged = [name for name, numbers in workspace.task.judged.items() if present & set(numbers)]
        for name in ("", *judged) if judged else ():
            by_class[name].append(data.images.samples[row])
    return by_class


def _split(text: str) -> frozenset[str]:
    """The marks in a line of the file."""
    width = 2 * _HALF
    if len(text) % width or not set(text) <= set("0123456789abcdef"):
        raise ValueError("not a row of marks")
    return frozenset(text[start : start + width] for start in range(0, len(text), width))


def _sentence(kind: str, asked: int, earlier: int, different: int, minimum: int) -> str:
    cases = "1 case" if different == 1 else f"{different} cases"
    what = _KINDS.get(kind) or f"cases {kind}"
    remedy = (
        f"ask with the seed, split, folds, label budget and steps of before, or {_DRAW_ALL}"
        if kind.startswith("drawn")
        else "ask with the seed, split, folds, label budget and steps of before, or let the site write split = "
        '"own" into its policy'
    )
    return (
        f"the {asked} {what} differ in {cases} from the {earlier} of an earlier answer, and the site's policy asks for "
        f"{minimum} (minimum_images), because the difference of two such answers is about these cases alone; {remedy}; "
        f"a site with new images takes part again when {minimum} cases or more are new"
    )
