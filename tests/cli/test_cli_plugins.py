"""A stranger's run folder or recipe is read: its plugins are programs, and none runs unless it is allowed to."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import polyclinic
from gallery_support import grid_of
from polyclinic.api import report
from polyclinic.core.errors import PolyclinicError
from polyclinic.report import page_server
from polyclinic.runs.prediction_processes import Places
from support import call

Finished = Callable[..., Path]


class Stranger:
    """A run folder with a plugin beside its recipe, which writes down every process that runs it."""

    def __init__(self, run: Path) -> None:
        self.run, self.recipe, self.plugin = run, run / "recipe.toml", run / "evil.py"
        self.plugin.write_text(f"import os\nprint(os.getpid(), file=open({str(run / 'ran')!r}, 'a'))\n")
        text = self.recipe.read_text()
        assert "plugins = []\n" in text
        self.recipe.write_text(text.replace("plugins = []\n", 'plugins = ["evil.py"]\n'))

    @property
    def ran(self) -> list[int]:
        """The processes that have run the plugin."""
        file = self.run / "ran"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def is_imported(self) -> None:
        """As by a program of the user that says ``import evil``."""
        spec = spec_from_file_location("evil_of_the_user", self.plugin)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules["evil_of_the_user"] = module
        spec.loader.exec_module(module)


@pytest.fixture
def stranger(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    before = set(sys.modules)
    monkeypatch.setattr(page_server, "_LONGEST_WAIT", 0.0)  # nobody opens a page
    yield Stranger(Path(shutil.copytree(finished(), tmp_path / "run")))
    for name in [name for name in set(sys.modules) - before if "evil" in name]:
        del sys.modules[name]


def reading(stranger: Stranger, command: str, out: Path, images: Path) -> list[object]:
    """A command line that reads the run or its recipe."""
    return {
        "predict": ["predict", stranger.run, images, "--out", out, "--jobs", "1"],
        "export": ["export", stranger.run, "--to", "torchscript", "--out", out],
        "explain": ["explain", "fedavg", "--recipe", stranger.recipe],
        "explain --json": ["explain", "fedavg", "--recipe", stranger.recipe, "--json"],
        "cost": ["cost", stranger.recipe, "--seconds-limit", "0"],
    }[command]


@pytest.mark.parametrize("command", ["predict", "export", "explain", "explain --json", "cost"])
def test_a_plugin_runs_only_if_it_is_allowed_to(
    stranger: Stranger, command: str, tiny_federation: Path, tmp_path: Path
) -> None:
    words = reading(stranger, command, tmp_path / "out", tiny_federation / "north" / "images")
    done = call(*words)
    assert (done.code, done.out, stranger.ran) == (2, "", [])
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert str(stranger.plugin) in line
    assert "--plugins" in line
    assert not (tmp_path / "out").exists()
    done = call(*words, "--plugins")
    assert (done.code, stranger.ran) == (0, [os.getpid()]), done.err
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    done = call(*words)
    assert (done.code, stranger.ran) == (0, [os.getpid()]), "it is part of this process by now"


def test_a_plugin_that_is_named_on_the_command_line_is_read_too(tiny_recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = call("explain", "fedavg", "-r", tiny_recipe_file, "--set", f"plugins=['{tmp_path / 'evil.py'}']")
    assert (done.code, (tmp_path / "ran").exists()) == (2, False)


@pytest.mark.parametrize("options", [(), ("--no-pictures",)])
def test_a_report_is_made_without_what_takes_a_plugin(stranger: Stranger, options: tuple[str, ...]) -> None:
    done = call("report", stranger.run, "--json", *options)
    assert (done.code, stranger.ran) == (0, []), done.err
    (line,) = done.err.splitlines()
    assert line.startswith("warning: the page is without ")
    assert str(stranger.plugin) in line
    assert "--plugins" in line
    told = json.loads(done.out)
    assert not told["pictures"]
    assert told["comparisons"][0]["methods"]["fedavg"]["average"] is not None
    assert "What was declared cannot be listed here" in (stranger.run / "report.html").read_text()
    done = call("report", stranger.run, "--json", "--plugins", *options)
    assert (done.code, done.err, stranger.ran) == (0, "", [os.getpid()])
    assert json.loads(done.out)["pictures"] == (not options)
    assert "What was declared cannot be listed here" not in (stranger.run / "report.html").read_text()


def test_a_report_of_several_runs_asks_for_the_plugins_of_each(finished: Finished, tmp_path: Path) -> None:
    """The first run names none, and stands for all of them elsewhere."""
    folder = grid_of(tmp_path, finished, ("fedavg", "local"))
    second = Stranger(folder / "run1")
    done = call("report", folder)
    assert (done.code, second.ran) == (0, []), done.err
    (line,) = done.err.splitlines()
    assert str(second.plugin) in line


def test_a_watched_page_is_shown_without_what_takes_a_plugin(stranger: Stranger) -> None:
    words = ("watch", stranger.run, "--web", "--no-open", "--every", "0.1")
    done = call(*words)
    assert (done.code, stranger.ran) == (0, [])
    (line,) = done.err.splitlines()
    assert line.startswith("warning: the page is without ")
    assert str(stranger.plugin) in line
    assert call("watch", stranger.run).code == 0
    assert stranger.ran == []


def test_a_watched_page_has_all_of_it_where_plugins_are_allowed(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []

    class Looking(page_server.PageServer):
        def serve_until_over(self, every: float) -> None:
            del every
            pages.append(json.dumps(self.watched.page().sections))

    monkeypatch.setattr(page_server, "PageServer", Looking)
    for options, ran in ([], []), (["--plugins"], [os.getpid()]):
        done = call("watch", stranger.run, "--web", "--no-open", *options)
        assert (done.code, stranger.ran) == (0, ran), done.err
    assert ["What was declared cannot be listed here" in page for page in pages] == [True, False]


def test_the_same_from_python(stranger: Stranger, tiny_federation: Path, tmp_path: Path) -> None:
    images = tiny_federation / "north" / "images"
    with pytest.raises(PolyclinicError, match=r"evil\.py.*plugins=True in Python"):
        polyclinic.predict(stranger.run, images, tmp_path / "masks", jobs=1)
    told: list[str] = []
    report(stranger.run, warn=told.append)
    assert (len(told), stranger.ran) == (1, [])
    assert len(polyclinic.predict(stranger.run, images, tmp_path / "masks", jobs=1, plugins=True)) == 5
    assert stranger.ran == [os.getpid()]
    assert report(stranger.run, warn=told.append).headline["pictures"]
    assert len(told) == 1


def test_what_the_user_imported_or_trained_with_needs_no_word(
    stranger: Stranger, tiny_federation: Path, tmp_path: Path
) -> None:
    images = tiny_federation / "north" / "images"
    stranger.is_imported()
    polyclinic.predict(stranger.run, images, tmp_path / "imported", jobs=1)
    assert stranger.ran == [os.getpid()], "not run once more"
    del sys.modules["evil_of_the_user"]
    with pytest.raises(PolyclinicError, match="--plugins"):
        polyclinic.predict(stranger.run, images, tmp_path / "forgotten", jobs=1)
    polyclinic.run(stranger.recipe, out=tmp_path / "own")
    assert len(stranger.ran) == 2
    polyclinic.predict(tmp_path / "own", images, tmp_path / "trained", jobs=1)
    assert len(stranger.ran) == 2


def test_prediction_programs_may_run_what_this_process_may(
    stranger: Stranger, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tiny_federation / "north" / "images"
    monkeypatch.setattr("polyclinic.runs.predict.choose_places", lambda *_: Places(2, forked=False))
    with pytest.raises(PolyclinicError, match="--plugins"):
        polyclinic.predict(stranger.run, images, tmp_path / "masks", jobs=2)
    assert stranger.ran == []
    assert len(polyclinic.predict(stranger.run, images, tmp_path / "masks", jobs=2, plugins=True)) == 5
    assert stranger.ran[0] == os.getpid()
    assert len(set(stranger.ran)) == len(stranger.ran) == 3


def test_plugins_are_for_the_page_alone_when_a_run_is_watched(stranger: Stranger) -> None:
    done = call("watch", stranger.run, "--plugins")
    assert done.code == 2
    assert "--port, --no-open and --plugins are for --web" in done.err
