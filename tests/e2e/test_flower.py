"""Server and sites as real processes with TLS and keys: kills, a malicious site, a stranger, a policy."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.tensor_files import load_tensors
from polyclinic.exchange.audit import line_hashes, read_audit
from polyclinic.exchange.receipts import read_receipts, receipts_problem
from polyclinic.runs.folder import RunFolder

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyclinic[flower]'")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")

from real_federation import POLICY, RealFederation, descendants, kill_tree  # noqa: E402

HERE = Path(__file__).parent


def held(federation: RealFederation, first: int, rounds: int) -> list[str]:
    """Arguments of a run in which north stops at round ``first`` and each later one until ``go-ROUND`` is there."""
    plugin = str(HERE / "holding.py")
    for site in federation.sites:
        (federation.folder / site / "policy.toml").write_text(f'{POLICY}plugins = ["{plugin}"]\n')
    folder = federation.folder / "hold"
    folder.mkdir()
    method = f"fedbn+holding(folder={folder},site=north,round={first})"
    # On a busy machine a site may need more than the default grace to come back.
    rules = [f'plugins=["{plugin}"]', f"training.rounds={rounds}", "engine.grace=600"]
    return ["--method", method, *(text for rule in rules for text in ("--set", rule))]


def test_a_site_and_then_the_server_are_killed_mid_round_and_nothing_is_lost(tmp_path: Path) -> None:
    with RealFederation(tmp_path) as federation:
        arguments = held(federation, 1, 3)
        for site in federation.sites:
            federation.site(site)
        server = federation.server("run", *arguments)
        # The site dies in the second round and comes back.
        federation.wait_for((tmp_path / "hold" / "at-1").exists)
        kill_tree(federation.processes["north"].pid)
        federation.processes["north"].wait(60)
        (tmp_path / "hold" / "go-1").touch()
        federation.site("north")
        # The server dies in the third round and resumes.
        federation.wait_for((tmp_path / "hold" / "at-2").exists)
        assert "north is back; sending its task again" in federation.output("server")
        kill_tree(server.pid)
        server.wait(60)
        (tmp_path / "hold" / "go-2").touch()
        assert load_tensors(tmp_path / "run" / "checkpoints" / "all" / "server.safetensors")[1]["round"] == 2
        federation.server("run", *arguments, "--resume")
        assert "resumed after round 2 of 3" in federation.finish()
        federation.same_as_in_process("run", *arguments)
        events = RunFolder(tmp_path / "run").events()
        assert [event["round"] for event in events] == [0, 1, 2]
        assert not any(event["refused"] for event in events)
        log = tmp_path / "north" / "home" / "audit.jsonl"
        assert len(list(read_audit(log))) >= 5, "the chain goes on after a kill"
        receipts = read_receipts(tmp_path / "run" / "receipts.jsonl")["north"]
        assert len(receipts) >= 5
        assert receipts_problem(line_hashes(log), receipts) is None
        said = federation.output("server").split("recipe sha256 ")[1][:64]
        assert {entry["recipe_sha256"] for entry in read_audit(log)} == {said}, "one recipe, at both ends"


def start_mallory(federation: RealFederation) -> None:
    """A site that spoils its updates in another way each round; it obeys no policy that a coordinator would like."""
    folder, site_keys = federation.folder, federation.keys / "hospitals" / "mallory"
    (folder / "open.toml").write_text(POLICY)
    with (folder / "mallory.out").open("wb") as out:
        federation.processes["mallory"] = subprocess.Popen(
            [sys.executable, str(HERE / "malicious_site.py"), "mallory", "mallory/data", "mallory/home",
             f"127.0.0.1:{federation.port}", str(site_keys / "mallory.key"), str(site_keys / "ca.crt")],
            stdout=out, stderr=out, cwd=folder, start_new_session=True,
        )  # fmt: skip


def test_a_malicious_site_a_stranger_and_policies(tmp_path: Path) -> None:
    """One federation of five: honest north and west, mallory who lies, south whose policy says no, and a stranger."""
    with RealFederation(tmp_path, ("mallory", "north", "south", "west")) as federation:
        (tmp_path / "south" / "policy.toml").write_text('methods = ["fedbn"]\nminimum_images = 1\n')
        (tmp_path / "west" / "policy.toml").write_text("minimum_images = 1\n")
        shutil.copytree(tmp_path / "north" / "data" / "north", tmp_path / "stranger" / "data" / "stranger")
        shutil.copy(tmp_path / "whole" / "federation.toml", tmp_path / "stranger" / "data")
        (tmp_path / "stranger" / "policy.toml").write_text(POLICY)
        rules = ["training.rounds=6", "engine.gather=600", "training.validate_every=6", "policies.buffers=keep"]
        federation.server(
            "run", "--method", "fedavg+norm_clipping", *(text for rule in rules for text in ("--set", rule))
        )
        start_mallory(federation)
        federation.site("north")
        federation.site("south")
        federation.wait_for(lambda: "connected" in federation.output("north"))
        federation.site("stranger", "--give-up", "1")
        assert "does not accept the key of site 'stranger'" in federation.finish("stranger", code=2)
        federation.site("west")  # the server has waited for it
        output = federation.finish()
        events = RunFolder(tmp_path / "run").events()
        check_mallory(tmp_path / "run", events)
        check_policies(tmp_path, output, events)
        # A site that is stopped takes its worker and its connection along.
        site = federation.processes["south"]
        family = descendants(site.pid)
        assert len(family) == 2, "the site and its worker"
        site.send_signal(signal.SIGINT)
        assert site.wait(120) == 130
        federation.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), 120)


def check_mallory(run: Path, events: list[dict[str, Any]]) -> None:
    """Refused by name and reason, round after round; an update that passes is cut to size."""
    reasons = [event["refused"].get("mallory", "") for event in events]
    wanted = ("NaN", "shape (3, 262144)", "safetensors", "it answers round 2, not round 3", "a value of 3e+38", "")
    for reason, expected in zip(reasons, wanted, strict=True):
        assert expected in reason
        assert bool(expected) == bool(reason)
    assert all(event["refused"].keys() <= {"mallory", "south"} for event in events), "nobody else is blamed"
    assert events[-1]["notes"]["norm_clipping"]["factor"]["mallory"] < 0.1, "a scaled update is cut to size"
    weights, _ = load_tensors(run / "checkpoints" / "all" / "server.safetensors")
    assert all(bool(t.isfinite().all()) and float(t.abs().max()) < 50 for n, t in weights.items() if "weights/" in n)


def check_policies(folder: Path, output: str, events: list[dict[str, Any]]) -> None:
    """South's policy refuses the method at both ends; west lets no value of a single case out, north does."""
    reason = "the site's policy does not allow the method fedavg+norm_clipping"
    assert reason in output
    assert reason in (folder / "run" / "server.log").read_text()
    assert reason in (folder / "south" / "home" / "site.log").read_text()
    assert all(reason in event["refused"]["south"] for event in events)
    assert all({"north", "west"} <= set(event["samples"]) <= {"mallory", "north", "west"} for event in events)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert set(summary["sites"]) == {"mallory", "north", "west"}
    rows = (folder / "run" / "cases.csv").read_text().splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {"mallory", "north"}
    assert "south" in summary["untested"]
    entries = list(read_audit(folder / "west" / "home" / "audit.jsonl"))
    assert [entry["kind"] for entry in entries][:2] == ["Description", "Update"]
    names = [path.stem for path in (folder / "west" / "data" / "west" / "images").iterdir()]
    assert not any(name in json.dumps(entries) for name in names), "no image's name leaves"
    assert not list(read_audit(folder / "south" / "home" / "audit.jsonl"))[-1]["tensors"]
