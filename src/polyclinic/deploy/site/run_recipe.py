"""The recipe of a run as a site remembers it: a server cannot change what it asks for while the run goes on."""

from __future__ import annotations

from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes, write_private
from polyclinic.deploy.site.admission import RefusedError
from polyclinic.recipe.fingerprint import LONGEST_RECIPE, AskedRecipe, differing_keys, read_asked


class RunRecipe:
    """``home/runs/RUN/recipe.toml``: the text of the first request that the policy allowed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "recipe.toml"

    def require(self, asked: AskedRecipe) -> None:
        """Raise if a run has another recipe than it began with, but for keys that change nothing that leaves."""
        if len(asked.text) >= LONGEST_RECIPE:
            raise PolyclinicError(f"the server's recipe is longer than {LONGEST_RECIPE} letters")
        if not self.path.exists():
            return
        first = self._remembered()
        if asked.sha256 and asked.text != first.text and asked.sha256 != first.sha256:
            changed = ", ".join(differing_keys(first.text, asked.text)[:3])
            raise RefusedError(f"the recipe of this run has changed ({changed}); start a new run for another recipe")

    def remember(self, asked: AskedRecipe) -> None:
        """Keep the first recipe of the run; one without a fingerprint could be changed later, so it does not run."""
        if not asked.sha256:
            raise PolyclinicError("the server's recipe has no fingerprint, because some key of it is not possible")
        if not self.path.exists():
            write_private(self.path, asked.text.encode())

    def _remembered(self) -> AskedRecipe:
        first = read_asked(read_bytes(self.path).decode(errors="replace"))
        if not first.sha256:
            raise PolyclinicError(f"{self.path}: the recipe of this run is damaged; restore it, or start a new run.")
        return first
