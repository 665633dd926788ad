"""The page of a run that goes on: built anew when its record has grown, and asked for again and again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from polyclinic.report.live_screen import title
from polyclinic.report.page.build import Page, build_page, check_metric
from polyclinic.report.page.document import render
from polyclinic.report.page.exchange import Declared
from polyclinic.report.page.live_section import grid_html, run_html
from polyclinic.report.page.results import Results, read_results
from polyclinic.report.report_file import all_extras
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.live_source import FolderSource, LiveSnapshot, LostError, Source

_NO_PICTURES = "they come with polyclinic report, when the run is finished."
_TRIES = 5  # a server that is silent after the last round has most likely finished
_RECORD = ("events.jsonl", "summary.json", "recipe.toml", "grid.json", "study.json")


class WatchedPage(Protocol):
    """What the server of a page asks for."""

    def page(self) -> Page:
        """The page of this moment."""
        ...

    def news(self, version: str) -> dict[str, Any]:
        """The live part, whether all is ``over`` and, where the page is no longer ``version``, all of its sections."""
        ...


class FolderPage:
    """A run folder, a comparison or a study on this machine."""

    def __init__(self, folder: Path, declared: Declared | None = None) -> None:
        self.folder = folder
        self._declare, self._declared = declared, dict[Path, Mapping[str, Any]]()
        self._page: Page | None = None
        self.stopped = ""

    def page(self) -> Page:
        """Built anew only where the record has changed."""
        version = self._version()
        if self._page is None or self._page.version != version:
            results = read_results(self.folder)
            metric = check_metric(results, None)
            extras, declared = all_extras(results, metric, _NO_PICTURES), self.declared if self._declare else None
            self._page = build_page(results, metric, extras, declared, self.live(results)[0])
            self._page.version = version
        return self._page

    def news(self, version: str) -> dict[str, Any]:
        """See ``WatchedPage``."""
        live, over = self.live(read_results(self.folder))
        page = self.page()
        news: dict[str, Any] = {"version": page.version, "live": live, "over": over}
        return news if page.version == version else {**news, "sections": page.sections, "data": page.data}

    def live(self, results: Results) -> tuple[str, bool]:
        """The live part as HTML, and whether everything is over."""
        if results.kind != "run":
            return grid_html(results), results.finished
        snapshot = FolderSource(RunFolder(self.folder)).read()
        self.stopped = str(snapshot.view.get("stopped") or "")
        return run_html(snapshot.view, snapshot.now), snapshot.over

    def declared(self, run: Path) -> Mapping[str, Any]:
        """Kept: it does not change while a run lasts, and takes a network to find out."""
        if run not in self._declared and self._declare is not None:
            self._declared[run] = self._declare(run)
        return self._declared[run]

    def _version(self) -> str:
        """A name for the state of the record; ``live.json`` changes all the time and has its own part of the page."""
        runs = [path.parent for depth in ("*", "*/*") for path in self.folder.glob(f"{depth}/recipe.toml")]
        files = [folder / name for folder in (self.folder, *sorted(runs)) for name in _RECORD]
        state = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
        return sha256(json.dumps(state).encode()).hexdigest()[:16]


class ServerPage:
    """A run elsewhere, of which a coordinator's server gives the live view and nothing else."""

    def __init__(self, source: Source, first: LiveSnapshot) -> None:
        self.source, self.last = source, first
        self.stopped = ""
        self._lost = 0  # looks in a row without an answer

    def page(self) -> Page:
        """The live part alone."""
        opening = {"answers": [], "missing": "", "note": "", "ranks": "", "facts": [], "live": self._live()}
        page = Page(title(self.last.view), "live")
        page.sections["opening"] = render("opening.html", question=title(self.last.view), **opening)
        return page

    def news(self, version: str) -> dict[str, Any]:  # noqa: ARG002
        """See ``WatchedPage``. While the server is silent, the last view with a note."""
        gone = False
        try:
            self.last, self._lost = self.source.read(), 0
        except LostError as error:
            self._lost += 1
            done, rounds = self.last.view.get("round") or 0, self.last.view.get("rounds") or 0
            gone = self._lost >= _TRIES and 0 < rounds <= done
            note = "The server has gone after the last round; its run folder has the result." if gone else str(error)
            self.last = self.last._replace(note=note)
        self.stopped = str(self.last.view.get("stopped") or "")
        return {"version": "live", "live": self._live(), "over": self.last.over or gone}

    def _live(self) -> str:
        return run_html(*self.last)


def watched_folder(folder: Path, declared: Declared | None) -> FolderPage:
    """The page of a folder, after a first look: what is wrong is said before anything is served."""
    found = FolderPage(folder, declared)
    found.live(read_results(folder))
    return found
