"""Ready for a real network: every site a process of its own, started anew for every round.

Each has a federation folder that holds nothing but its own site, and a disk of its own. Files of named tensors are all
that passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import polyclinic
from polyclinic.engines.inprocess import InProcess
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.federation.bench import Bench, build_bench
from polyclinic.federation.messages import Broadcast, Evaluation, Failure, Tensors, Update, load_message, save_message
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.store import SiteStore
from polyclinic.files import load_tensors
from polyclinic.recipe_files import load_recipe, recipe_text
from polyclinic.runs.sites import open_for, prepare_items, site_data
from support import assert_same


class Hospitals:
    """An engine that starts one process a site and round; only the scores are computed here."""

    def __init__(self, bench: Bench, folder: Path, here: InProcess) -> None:
        self.bench, self.folder, self.here = bench, folder, here
        self.started = 0

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Side by side, answers in the order of the sites."""
        active = [self._start(broadcast, site) for site in sites]
        for process, reply in active:
            _, err = process.communicate(timeout=240)
            assert process.returncode == 0, err
            update = load_message(reply)
            assert isinstance(update, Update)
            yield update

    def _start(self, broadcast: Broadcast, site: str) -> tuple[subprocess.Popen[str], Path]:
        home = self.folder / site
        received, reply = (home / f"{way}-{broadcast.round}.safetensors" for way in ("in", "out"))
        save_message(received, broadcast)
        arguments = ["recipe.toml", site, "state", received.name, reply.name]
        command = [sys.executable, "-m", "polyclinic.runs.one_site", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.started += 1
        return subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True, env=environment), reply

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        return self.here.evaluate(broadcast, sites, split, detailed)

    def model(self, broadcast: Broadcast, site: str) -> Tensors:
        return self.here.model(broadcast, site)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_processes_that_start_anew_every_round_give_the_same_weights(
    method: str, tiny_recipe_file: Path, tiny_federation: Path, tmp_path: Path
) -> None:
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method=method, overrides=["training.rounds=2"]).folder
    recipe = load_recipe(run / "recipe.toml")
    for site in ("north", "south"):
        home = tmp_path / "hospitals" / site
        shutil.copytree(tiny_federation / site, home / "federation" / site)
        shutil.copy(tiny_federation / "federation.toml", home / "federation")
        (home / "recipe.toml").write_text(recipe_text(recipe.model_copy(update={"federation": "federation"})))

    federation, recipe = open_for(recipe)
    bench, (part,) = build_bench(recipe, federation.task), protocol_parts(federation, recipe)
    sites = {
        site: Site(
            site_data(site, prepare_items(federation, recipe, federation.sites[site]), part),
            SiteStore(tmp_path / "hospitals" / site / "state"),
        )
        for site in federation.sites
    }
    engine = Hospitals(bench, tmp_path / "hospitals", InProcess(bench, sites))
    Server(bench, engine, list(sites), tmp_path / "server", Observer()).fit()

    assert engine.started == 4
    for ours, theirs in {
        "server/server": "checkpoints/all/server",
        "server/best": "checkpoints/all/best",
        "hospitals/north/state/round-00001": "sites/north/all/round-00001",
        "hospitals/south/state/round-00001": "sites/south/all/round-00001",
    }.items():
        one, other = load_tensors(tmp_path / f"{ours}.safetensors"), load_tensors(run / f"{theirs}.safetensors")
        assert_same(one[0], other[0])
        assert one[1] == other[1]
    for site in sites:
        crossed = {path.suffix for path in (tmp_path / "hospitals" / site).iterdir() if path.is_file()}
        assert crossed == {".safetensors", ".toml"}
    if method == "fedbn":
        assert bench.kept, "or the test would not show that kept weights live on the site's own disk"
