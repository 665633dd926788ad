"""Sentences that may leave a site: one that names a folder or an image of the site stays in the site's log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from polyclinic.data.formats import stem_of
from polyclinic.deploy.site.settings import SiteSettings

_CHANNEL_SUFFIX = re.compile(r"_\d{4}$")  # a file's name is that of its image and the number of the channel
_SHORTEST_NAME = 3  # letters from which the name of an image can identify a patient


def without_names(text: str, settings: SiteSettings, log: Callable[[str], object]) -> str:
    """An error's sentence for the server; ``log`` gets one that must stay here."""
    paths = filter(None, (settings.policy, settings.home, settings.data, settings.encoder, settings.key))
    named_path = next((path for path in paths if path in text or str(Path(path).resolve()) in text), None)
    if named_path is None and not _names_an_image(text, Path(settings.data) / settings.name):
        return text
    log(text)
    what = "policy" if named_path is not None and named_path == settings.policy else "files"
    return f"something is wrong with the site's {what}, so nothing leaves; its log says what"


def _names_an_image(text: str, folder: Path) -> bool:
    """Whether a sentence holds the name of an image (often that of a patient) without its folder."""
    links = (part.resolve() for part in folder.glob("*") if part.is_symlink())  # which rglob does not enter
    folders = [folder, *links]
    files = [path for inside in folders for path in inside.rglob("*") if path.is_file()]
    stems = {stem_of(path) for path in files}
    names = {path.name for path in files} | stems | {_CHANNEL_SUFFIX.sub("", stem) for stem in stems}
    candidates = (name for name in names if len(name) >= _SHORTEST_NAME and name in text)
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in candidates)
