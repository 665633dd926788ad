"""Run folders, grids, studies and galleries written by hand, for tests of reports: no training, and known numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from polyclinic.core.files import write_json
from polyclinic.evaluation.aggregate import Row, rows_to_csv, summarise

SITES = ("north", "south")
HOSTILE = '<img src=x onerror="window.hacked=1">$<a href="https://example.org">&lt;b&gt;</script><!--'
"""A name that is harmless only where everything is escaped."""


def value_of(method: int, seed: int, site: int, case: int) -> float:
    """The Dice of a case: every place has its own share, so that means can be told apart."""
    return round(0.6 + 0.05 * method + 0.01 * seed - 0.1 * site + 0.02 * case, 6)


def write_run(
    folder: Path,
    method: str = "fedavg",
    place: int = 0,
    seed: int = 0,
    sites: Sequence[str] = SITES,
    rounds: int = 3,
    cases: int = 4,
    finished: bool = True,
    **summary: Any,
) -> Path:
    """A run whose every number is known; ``place`` is that of its method in the grid."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = f'federation = "somewhere/tiny"\nmethod = {json.dumps(method)}\nseed = {seed}\n'
    (folder / "recipe.toml").write_text(f"{recipe}[training]\nrounds = {rounds}\n[network]\nname = 'unet'\n")
    write_json(folder / "versions.json", {"seed": seed, "python": "3.11.7", "torch": "2.13.0"})
    write_json(folder / "task.json", {"classes": ["background", "disc"], "channels": 1, "spatial_dims": 2})
    split = [
        f"{quoted(site)},case{i}-{name},{name}" for site in sites for name in ("train", "val", "test") for i in range(2)
    ]
    (folder / "split.csv").write_text("\n".join(["site,image,split", *split]) + "\n", encoding="utf-8")
    events = [round_event(place, seed, number, sites) for number in range(rounds if finished else 1)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    if not finished:
        return folder
    rows: list[Row] = [
        {"site": site, "case": f"case{c}", "image": f"case{c}-1", "class": "disc", "metric": metric, "value": value}
        for s, site in enumerate(sites)
        for c in range(cases)
        for metric, value in (("dice", value_of(place, seed, s, c)), ("hd95", 10.0 - place))
    ]
    rows_to_csv(folder / "cases.csv", rows)
    by_site, average = summarise(rows)
    table = {
        "method": method, "components": [], "federation": "tiny", "protocol": "own-test", "engine": "inprocess",
        "seed": seed, "rounds": rounds, "sites": by_site, "average": average, "distances": "pixels",
        "bytes_up": 1_000_000 * rounds * len(sites), "bytes_down": 2_000_000 * rounds * len(sites),
        "seconds": 10.0 + place, "images_leave": False, "refused": 0, "split_sha256": {"all": f"{seed:064x}"},
    }  # fmt: skip
    write_json(folder / "summary.json", table | summary)
    return folder


def quoted(text: str) -> str:
    """A field of a CSV file."""
    return '"' + text.replace('"', '""') + '"'


def round_event(place: int, seed: int, number: int, sites: Sequence[str] = SITES, **more: Any) -> dict[str, Any]:
    """One line of ``events.jsonl``."""
    dice = 0.4 + 0.1 * number + 0.02 * place + 0.01 * seed
    return {
        "part": "all", "round": number, "sites": list(sites), "refused": {}, "samples": dict.fromkeys(sites, 5),
        "losses": {site: {"segmentation": 1.0 - 0.1 * number} for site in sites},
        "validation": {"dice": dice, "sites": {site: dice + 0.01 * s for s, site in enumerate(sites)}},
        "best_round": number,
        "bytes_up": dict.fromkeys(sites, 1_000_000), "bytes_down": dict.fromkeys(sites, 2_000_000),
        "shared_up": {}, "notes": {}, "seconds": {"training": 1.0, "validation": 0.5}, "warnings": [], **more,
    }  # fmt: skip


def write_grid(
    folder: Path, methods: Sequence[str] = ("fedavg", "fedbn", "fedprox"), seeds: Sequence[int] = (0, 1), **more: Any
) -> Path:
    """A comparison; ``missing`` names runs, such as ``("fedbn", 1)``, that are still at work."""
    missing = more.pop("missing", ())
    runs = [
        {"method": method, "seed": seed, "folder": f"m{place}-seed{seed}"}
        for seed in seeds
        for place, method in enumerate(methods)
    ]
    for run in runs:
        place, key = methods.index(run["method"]), (run["method"], run["seed"])
        write_run(folder / run["folder"], run["method"], place, run["seed"], finished=key not in missing, **more)
    write_json(folder / "grid.json", {"methods": list(methods), "seeds": list(seeds), "runs": runs})
    return folder


def write_study(folder: Path, methods: Sequence[str] = ("fedavg", "fedbn"), **more: Any) -> Path:
    """Two values of one key."""
    grids = {value: f"data.labelled={value}" for value in ("5", "10")}
    for name in grids.values():
        write_grid(folder / name, methods, **more)
    plan = {"key": "data.labelled", "methods": list(methods), "grids": grids, "values": list(grids), "fixed": None}
    write_json(folder / "study.json", plan)
    return folder


def write_gallery(folder: Path, methods: Sequence[str], sites: Sequence[str] = SITES, slices: int = 3) -> Path:
    """Pictures and features as ``runs`` writes them: slice ``n`` is grey ``40 n``, so that slices can be told apart."""
    home = folder / "gallery"
    home.mkdir(parents=True, exist_ok=True)
    mask = Image.new("P", (12, 8), 0)
    mask.putpalette([0, 0, 0, 230, 159, 0])
    mask.paste(1, (2, 2, 6, 6))
    mask.save(home / "mask.png", transparency=0)
    for number in range(slices):
        Image.new("L", (12, 8), 40 * number).save(home / f"slice{number}.png")
    listed = [
        {
            "index": 10 + n,
            "image": f"slice{n}.png",
            "truth": "mask.png",
            "predictions": dict.fromkeys(methods, "mask.png"),
        }
        for n in range(slices)
    ]
    entry = {
        "image": "i",
        "part": "all",
        "seed": 0,
        "scores": dict.fromkeys(methods, 0.75),
        "size": [8, 12],
        "start": 1,
    }
    cases = [{"rank": rank, "case": f"case-{rank}", "slices": listed, **entry} for rank in ("best", "median", "worst")]
    gallery = {
        "version": 1, "classes": ["disc"], "colours": ["#e69f00"], "methods": list(methods), "reference": methods[0],
        "metric": "dice", "sites": dict.fromkeys(sites, cases),
        "skipped": [{"site": "west", "reason": "it is far away."}],
    }  # fmt: skip
    write_json(home / "gallery.json", gallery)
    points = [{"site": site, "class": None, "x": float(n), "y": 1.0 - n} for n, site in enumerate(sites)]
    panel = {"method": methods[-1], "title": "features", "explained": [0.6, 0.3], "before": points, "after": points}
    shares = {"between_sites": {"before": 0.5, "after": 0.25}, "note": "A point is an image."}
    write_json(home / "features.json", {"version": 1, "panels": [panel | shares]})
    return folder
